"""What lies between the products of a decoder layer, compiled for this processor: one call where PyTorch makes ten.

For passes of few rows only; all rows are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit

from specdec.kernels.compiling import compiled
from specdec.kernels.vectors import FLOAT, Vectors, cgutils, has_feature, on_arrays

_ROWS, _WEIGHT, _INDEXES = "float32[:,::1]", "float32[::1]", "int64[::1]"
_LEAST = np.float32(-3e38)
_NUM_LANES = 16 if has_feature("avx512f") else 8 if has_feature("avx2") else 4
_LOG2_E, _LN_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
_LEAST_EXPONENT, _LARGEST_EXPONENT = np.float32(-87), np.float32(88)
_TERMS = tuple(np.float32(1 / math.factorial(power)) for power in range(7))
"""Of the series of e ** x, which is right to 1e-7 where x is at most half of ln 2."""


@njit(inline="always")
def _exponentials(values: Any) -> None:
    """e ** values in place, by what can be done to a vector at once; as if values were from -87 to 88. (n,)"""
    powers = np.empty(len(values), np.int32)
    for j in range(len(values)):
        value = min(max(values[j], _LEAST_EXPONENT), _LARGEST_EXPONENT)
        power = np.rint(value * _LOG2_E)
        rest = value - power * _LN_2
        total = _TERMS[6] * rest + _TERMS[5]
        total = total * rest + _TERMS[4]
        total = total * rest + _TERMS[3]
        total = total * rest + _TERMS[2]
        total = total * rest + _TERMS[1]
        values[j] = total * rest + _TERMS[0]
        # The exponent of a float32 number is all that it has of a power of two.
        powers[j] = (np.int32(power) + 127) << 23
    factors = powers.view(np.float32)
    for j in range(len(values)):
        values[j] *= factors[j]


def _scores(head_dim: int) -> Callable[..., None]:
    """For compiled functions: a query, (head_dim,), times keys, (slots, head_dim), at slots, (n,), into (n,)."""

    def generate(builder: Any, arrays: Sequence[Any]) -> None:
        vectors = Vectors(builder, _NUM_LANES)
        query, keys, slots, scores = (vectors.start(array) for array in arrays)
        (count,) = cgutils.unpack_tuple(builder, arrays[2].shape)
        whole = count.type
        parts = [whole(start * 4) for start in range(0, head_dim, _NUM_LANES)]
        of_query = [vectors.load(vectors.floats, query, part) for part in parts]
        with cgutils.for_range(builder, count) as place:
            slot = vectors.load(whole, slots, builder.mul(place.index, whole(8)))
            start = builder.mul(slot, whole(head_dim * 4))
            total = vectors.total()
            for part, left in zip(parts, of_query, strict=True):
                vectors.add_product(total, left, vectors.load(vectors.floats, keys, builder.add(start, part)))
            vectors.store(vectors.sum(builder.load(total)), scores, builder.mul(place.index, whole(4)))

    return on_arrays(4, generate)


def _blend(head_dim: int) -> Callable[..., None]:
    """For compiled functions: shares, (n,), times values, (slots, head_dim), at slots, (n,), summed in (head_dim,)."""

    def generate(builder: Any, arrays: Sequence[Any]) -> None:
        vectors = Vectors(builder, _NUM_LANES)
        shares, values, slots, out = (vectors.start(array) for array in arrays)
        (count,) = cgutils.unpack_tuple(builder, arrays[2].shape)
        whole = count.type
        parts = {whole(start * 4): vectors.total() for start in range(0, head_dim, _NUM_LANES)}
        with cgutils.for_range(builder, count) as place:
            slot = vectors.load(whole, slots, builder.mul(place.index, whole(8)))
            start = builder.mul(slot, whole(head_dim * 4))
            share = vectors.load(FLOAT, shares, builder.mul(place.index, whole(4)))
            share = vectors.everywhere(share, vectors.floats)
            for part, total in parts.items():
                vectors.add_product(total, share, vectors.load(vectors.floats, values, builder.add(start, part)))
        for part, total in parts.items():
            vectors.store(builder.load(total), out, part)

    return on_arrays(4, generate)


_scores_64, _blend_64, _scores_128, _blend_128 = _scores(64), _blend(64), _scores(128), _blend(128)


@njit(inline="always")
def _plain_scores(query: Any, keys: Any, slots: Any, scores: Any) -> None:
    """As `_scores`, for heads of any size."""
    for place in range(len(slots)):
        score = np.float32(0)
        for i in range(len(query)):
            score += query[i] * keys[slots[place], i]
        scores[place] = score


@njit(inline="always")
def _plain_blend(shares: Any, values: Any, slots: Any, out: Any) -> None:
    """As `_blend`, for heads of any size."""
    out[:] = np.float32(0)
    for place in range(len(slots)):
        for i in range(len(out)):
            out[i] += shares[place] * values[slots[place], i]


@compiled(_ROWS, _WEIGHT, "float32", _ROWS)
def norm(rows: Any, weight: Any, least: float, out: Any) -> None:
    """RMSNorm (Zhang and Sennrich 2019).

    Args:
        rows: (rows, hidden_size)
        weight: times the root of its size, (hidden_size,).
        least: what is added to the sum of squares.
        out: (rows, hidden_size)
    """
    for row in range(rows.shape[0]):
        squares = np.float32(least)
        for j in range(rows.shape[1]):
            squares += rows[row, j] * rows[row, j]
        factor = np.float32(1) / np.float32(math.sqrt(squares))
        for j in range(rows.shape[1]):
            out[row, j] = rows[row, j] * factor * weight[j]


@compiled(_ROWS, _ROWS)
def gate(gate_up: Any, out: Any) -> None:
    """silu(gate) * up (SwiGLU, Shazeer 2020).

    Args:
        gate_up: (rows, 2 * width), the gate before what it lets through.
        out: (rows, width)
    """
    width = out.shape[1]
    powers = np.empty(width, np.float32)
    for row in range(out.shape[0]):
        for j in range(width):
            powers[j] = -gate_up[row, j]
        _exponentials(powers)
        for j in range(width):
            out[row, j] = gate_up[row, j] / (np.float32(1) + powers[j]) * gate_up[row, width + j]


@compiled(_ROWS, _ROWS, _ROWS, "float32", "float32[:,:,::1]", *[_INDEXES] * 4, "int64[:,::1]", _ROWS)
def attend(
    qkv: Any,
    cosines: Any,
    sines: Any,
    scaling: float,
    heads: Any,
    slots: Any,
    seen: Any,
    firsts: Any,
    counts: Any,
    paths: Any,
    out: Any,
) -> None:
    """Rotary positions (Su et al. 2021), the new keys and values into their slots, and attention.

    Args:
        qkv: queries, keys, values, (rows, (heads + 2 * kv_heads) * head_dim); overwritten. The two numbers of a query
            or key that a position turns around each other lie side by side.
        cosines: of the rows' positions, (rows, head_dim / 2).
        sines: as `cosines`.
        scaling: factor on the scores.
        heads: slots of this layer, (2 * kv_heads, slots, head_dim), keys before values.
        slots: where each row's own key and value go, (rows,).
        seen: slots of what the sequences hold, side by side.
        firsts: where in `seen` a row's sequence begins, (rows,).
        counts: how many slots from there on it sees, (rows,).
        paths: what it sees besides: slots of the nodes of a token tree, (rows, nodes), -1 behind the last.
        out: (rows, heads * head_dim)
    """
    num_rows, num_kv_heads, head_dim = qkv.shape[0], heads.shape[0] // 2, heads.shape[2]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    groups = num_heads // num_kv_heads
    for row in range(num_rows):
        for head in range(num_heads + num_kv_heads):
            start = head * head_dim
            for i in range(head_dim // 2):
                even, odd = qkv[row, start + 2 * i], qkv[row, start + 2 * i + 1]
                qkv[row, start + 2 * i] = even * cosines[row, i] - odd * sines[row, i]
                qkv[row, start + 2 * i + 1] = even * sines[row, i] + odd * cosines[row, i]
        for head in range(2 * num_kv_heads):
            start = (num_heads + head) * head_dim
            for i in range(head_dim):
                heads[head, slots[row], i] = qkv[row, start + i]
    visible = np.empty(np.max(counts) + paths.shape[1], np.int64)
    scores = np.empty(len(visible), np.float32)
    for row in range(num_rows):
        count = counts[row]
        visible[:count] = seen[firsts[row] : firsts[row] + count]
        for node in range(paths.shape[1]):
            if paths[row, node] >= 0:
                visible[count] = paths[row, node]
                count += 1
        seen_by_row = visible[:count]
        shares = scores[:count]
        for head in range(num_heads):
            key, value, start = head // groups, num_kv_heads + head // groups, head * head_dim
            query, into = qkv[row, start : start + head_dim], out[row, start : start + head_dim]
            if head_dim == 64:
                _scores_64(query, heads[key], seen_by_row, shares)
            elif head_dim == 128:
                _scores_128(query, heads[key], seen_by_row, shares)
            else:
                _plain_scores(query, heads[key], seen_by_row, shares)
            best = _LEAST
            for place in range(count):
                shares[place] *= scaling
                best = max(best, shares[place])
            for place in range(count):
                shares[place] -= best
            _exponentials(shares)
            total = np.float32(0)
            for place in range(count):
                total += shares[place]
            for place in range(count):
                shares[place] /= total
            if head_dim == 64:
                _blend_64(shares, heads[value], seen_by_row, into)
            elif head_dim == 128:
                _blend_128(shares, heads[value], seen_by_row, into)
            else:
                _plain_blend(shares, heads[value], seen_by_row, into)

"""Products with weights of 4 or 8 bits by the dot products of bytes that processors have (VNNI), compiled by Numba.

Weights come in groups of 32 of a row, `least + scale * level`, with levels from 0 to 15 or to 255. The rows that go in
are rounded to 8 bits in groups of 32, `scale * q` with q from -127 to 127, as llama.cpp does (its type Q8_1). Of one
group, the sum of products is

    scale_of_weights * scale_of_rows * sum(level * q) + least * sum(row)

where only the first sum is of products, and of integers. Each lane of a vector is another output, so nothing is ever
summed across a vector; and weights that were read serve up to four rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specdec.kernels.compiling import compiled
from specdec.kernels.vectors import FLOAT, INT, Vectors, cgutils, has_feature, on_arrays

GROUP_SIZE = 32
_QUADS = GROUP_SIZE // 4
"""The dot products take four bytes of a row and of a weight each."""
_LARGEST = np.float32(127)
NUM_LANES = 16 if has_feature("avx512vnni") else 8 if has_feature("avxvnni") else 0
"""Outputs of one vector; 0: this processor has no dot products of bytes."""


def _turn(num_rows: int, bits: int) -> Callable[..., None]:
    """For compiled functions: products of so many rows with the weights of one tile of `NUM_LANES` outputs.

    It takes one tile of what `multiply` takes: weights (groups, bytes), scales (groups, 2, lanes), the rows' levels
    (rows, in_features), scales (rows, groups) and sums (rows, groups), and where to put the products, (rows, lanes).
    """

    def generate(builder: Any, arrays: Sequence[Any]) -> None:
        vectors = Vectors(builder, NUM_LANES)
        weights, scales, levels, row_scales, sums, out = (vectors.start(array) for array in arrays)
        num_groups = cgutils.unpack_tuple(builder, arrays[0].shape)[0]
        size = cgutils.unpack_tuple(builder, arrays[2].shape)[1]
        out_stride = cgutils.unpack_tuple(builder, arrays[5].strides)[0]
        whole = num_groups.type
        totals = [vectors.total() for _ in range(num_rows)]
        with cgutils.for_range(builder, num_groups) as loop:
            at = builder.mul(loop.index, whole(GROUP_SIZE * NUM_LANES * bits // 8))
            offsets = [builder.add(at, whole(number * NUM_LANES * 4)) for number in range(_QUADS * bits // 8)]
            words = [vectors.load(vectors.integers, weights, offset) for offset in offsets]
            if bits == 4:
                mask, shift = (vectors.constant(vectors.integers, value) for value in (0x0F0F0F0F, 4))
                upper = [builder.and_(builder.lshr(word, shift), mask) for word in words]
                words = [builder.and_(word, mask) for word in words] + upper
            at = builder.mul(loop.index, whole(2 * NUM_LANES * 2))
            scale, least = (
                builder.fpext(vectors.load(vectors.halves, scales, builder.add(at, whole(start))), vectors.floats)
                for start in (0, NUM_LANES * 2)
            )
            for row, total in enumerate(totals):
                at = builder.add(builder.mul(size, whole(row)), builder.mul(loop.index, whole(GROUP_SIZE)))
                products = vectors.constant(vectors.integers, 0)
                for number, word in enumerate(words):
                    four = vectors.load(INT, levels, builder.add(at, whole(4 * number)))
                    right = vectors.everywhere(four, vectors.integers)
                    products = vectors.call(f"llvm.x86.avx512.vpdpbusd.{32 * NUM_LANES}", products, word, right)
                at = builder.mul(builder.add(builder.mul(num_groups, whole(row)), loop.index), whole(4))
                row_scale, row_sum = (
                    vectors.everywhere(vectors.load(FLOAT, each, at), vectors.floats) for each in (row_scales, sums)
                )
                products = builder.sitofp(products, vectors.floats)
                vectors.add_product(total, products, builder.fmul(scale, row_scale))
                vectors.add_product(total, least, row_sum)
        for row, total in enumerate(totals):
            vectors.store(builder.load(total), out, builder.mul(out_stride, whole(row)))

    return on_arrays(6, generate)


_MANY = 4
"""Rows of a turn: their sums, and what the weights are made of, must fit into the processor's registers."""
_one_by_4_bits, _many_by_4_bits = _turn(1, 4), _turn(_MANY, 4)
_one_by_8_bits, _many_by_8_bits = _turn(1, 8), _turn(_MANY, 8)


@compiled("float32[:,::1]", "uint8[:,:,::1]", "uint16[:,:,:,::1]", "float32[:,::1]")
def multiply(rows: Any, weights: Any, scales: Any, out: Any) -> None:
    """Products of rows with packed weights.

    Args:
        rows: (rows, in_features)
        weights: see `pack`.
        scales: see `pack`.
        out: (rows, out_features)
    """
    num_rows, num_groups = rows.shape[0], weights.shape[1]
    levels = np.empty(rows.shape, np.int8)
    row_scales = np.empty((num_rows, num_groups), np.float32)
    sums = np.empty((num_rows, num_groups), np.float32)
    for row in range(num_rows):
        for group in range(num_groups):
            start = group * GROUP_SIZE
            largest, total = np.float32(0), np.float32(0)
            for j in range(start, start + GROUP_SIZE):
                largest = max(largest, abs(rows[row, j]))
                total += rows[row, j]
            row_scales[row, group], sums[row, group] = largest / _LARGEST, total
            factor = _LARGEST / largest if largest > 0 else np.float32(0)
            for j in range(start, start + GROUP_SIZE):
                levels[row, j] = np.int8(np.rint(rows[row, j] * factor))
    has_4_bits = weights.shape[2] < GROUP_SIZE * NUM_LANES
    first_alone = num_rows - num_rows % _MANY
    for tile in range(weights.shape[0]):
        w, s, o = weights[tile], scales[tile], out[:, tile * NUM_LANES : (tile + 1) * NUM_LANES]
        for row in range(0, first_alone, _MANY):
            if has_4_bits:
                _many_by_4_bits(w, s, levels[row:], row_scales[row:], sums[row:], o[row:])
            else:
                _many_by_8_bits(w, s, levels[row:], row_scales[row:], sums[row:], o[row:])
        for row in range(first_alone, num_rows):
            if has_4_bits:
                _one_by_4_bits(w, s, levels[row:], row_scales[row:], sums[row:], o[row:])
            else:
                _one_by_8_bits(w, s, levels[row:], row_scales[row:], sums[row:], o[row:])


def pack(levels: np.ndarray, scale: np.ndarray, least: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights and their scales as `multiply` takes them.

    Args:
        levels: (out_features, in_features), uint8; multiples of `NUM_LANES` and `GROUP_SIZE`.
        scale: (out_features, groups), kept in float16.
        least: as `scale`.
        bits: of a level, 4 or 8.

    Returns:
        Weights, (tiles, groups, bytes), and scales with least values, (tiles, groups, 2, lanes), the bits of float16.
    """
    tiles, groups = levels.shape[0] // NUM_LANES, levels.shape[1] // GROUP_SIZE
    words = levels.reshape(tiles, NUM_LANES, groups, _QUADS, 4).transpose(0, 2, 3, 1, 4)
    if bits == 4:
        words = words[:, :, : _QUADS // 2] | (words[:, :, _QUADS // 2 :] << 4)
    pairs = np.stack([scale, least]).astype(np.float16).reshape(2, tiles, NUM_LANES, groups).transpose(1, 3, 0, 2)
    return np.ascontiguousarray(words).reshape(tiles, groups, -1), np.ascontiguousarray(pairs).view(np.uint16)

"""What lies between the products of a decoder layer, compiled for this processor: one call where PyTorch makes ten.

For passes of few rows only; all rows are float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specdec.kernels.compiling import compiled

_ROWS, _WEIGHT, _INDEXES = "float32[:,::1]", "float32[::1]", "int64[::1]"
_LEAST = np.float32(-3e38)


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
    for row in range(out.shape[0]):
        for j in range(width):
            through = gate_up[row, j]
            out[row, j] = through / (np.float32(1) + np.float32(math.exp(-through))) * gate_up[row, width + j]


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
        for head in range(num_heads):
            key, value, start = head // groups, num_kv_heads + head // groups, head * head_dim
            best = _LEAST
            for place in range(count):
                slot = visible[place]
                score = np.float32(0)
                for i in range(head_dim):
                    score += qkv[row, start + i] * heads[key, slot, i]
                scores[place] = score * scaling
                best = max(best, scores[place])
            total = np.float32(0)
            for place in range(count):
                scores[place] = np.float32(math.exp(scores[place] - best))
                total += scores[place]
            out[row, start : start + head_dim] = np.float32(0)
            for place in range(count):
                slot, share = visible[place], scores[place] / total
                for i in range(head_dim):
                    out[row, start + i] += share * heads[value, slot, i]

"""Products with weights of 4 or 8 bits by the dot products of bytes that processors have (VNNI), compiled by Numba.

Weights come in groups of 32 of a row, `least + scale * level`, with levels from 0 to 15 or to 255. The rows that go in
are rounded to 8 bits in groups of 32, `scale * q` with q from -127 to 127, as llama.cpp does (its type Q8_1). Of one
group, the sum of products is

    scale_of_weights * scale_of_rows * sum(level * q) + least * sum(row)

where only the first sum is of products, and of integers. Each lane of a vector is another output, so nothing is ever
summed across a vector; and weights that were read serve up to four rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from specdec.kernels.compiling import compiled

GROUP_SIZE = 32
_QUADS = GROUP_SIZE // 4
"""The dot products take four bytes of a row and of a weight each."""
_LARGEST = np.float32(127)
cgutils: Any = untyped_cgutils
_BYTE, _INT, _HALF, _FLOAT = ir.IntType(8), ir.IntType(32), ir.HalfType(), ir.FloatType()


def _num_lanes() -> int:
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512vnni"):
        return 16
    return 8 if features.get("avxvnni") else 0


NUM_LANES = _num_lanes()
"""Outputs of one vector; 0: this processor has no dot products of bytes."""


def _turn(num_rows: int, bits: int) -> Callable[..., None]:
    """A function for compiled code: products of so many rows with the weights of one tile of `NUM_LANES` outputs.

    It takes one tile of what `multiply` takes: weights (groups, bytes), scales (groups, 2, lanes), the rows' levels
    (rows, in_features), scales (rows, groups) and sums (rows, groups), and where to put the products, (rows, lanes).
    """

    @intrinsic
    def turn(_: Any, weights: Any, scales: Any, levels: Any, row_scales: Any, sums: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds_and_values = zip(signature.args, arguments, strict=True)
            arrays = [context.make_array(kind)(context, builder, value) for kind, value in kinds_and_values]
            _generate(builder, arrays, num_rows, bits)
            return context.get_dummy_value()

        return types.void(weights, scales, levels, row_scales, sums, out), generate

    return turn


def _generate(builder: Any, arrays: list[Any], num_rows: int, bits: int) -> None:
    """LLVM code of a turn. All offsets are in bytes."""
    weights, scales, levels, row_scales, sums, out = (builder.bitcast(each.data, _BYTE.as_pointer()) for each in arrays)
    num_groups = cgutils.unpack_tuple(builder, arrays[0].shape)[0]
    size = cgutils.unpack_tuple(builder, arrays[2].shape)[1]
    out_stride = cgutils.unpack_tuple(builder, arrays[5].strides)[0]
    integers, floats, halves = (ir.VectorType(kind, NUM_LANES) for kind in (_INT, _FLOAT, _HALF))

    def whole(number: int) -> Any:
        return ir.Constant(num_groups.type, number)

    def place(kind: Any, start: Any, offset: Any) -> Any:
        return builder.bitcast(builder.gep(start, [offset]), kind.as_pointer())

    def load(kind: Any, start: Any, offset: Any) -> Any:
        return builder.load(place(kind, start, offset), align=1)

    def in_all_lanes(value: Any, kind: Any) -> Any:
        nothing = ir.Constant(kind, ir.Undefined)
        first = builder.insert_element(nothing, value, ir.Constant(_INT, 0))
        return builder.shuffle_vector(first, nothing, ir.Constant(integers, [0] * NUM_LANES))

    def constant(kind: Any, value: float) -> Any:
        return ir.Constant(kind, [value] * NUM_LANES)

    def operator(name: str, kind: Any) -> Any:
        return cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)

    dot = operator(f"llvm.x86.avx512.vpdpbusd.{32 * NUM_LANES}", integers)
    multiply_add = operator(f"llvm.fma.v{NUM_LANES}f32", floats)
    totals = [cgutils.alloca_once_value(builder, constant(floats, 0.0)) for _ in range(num_rows)]
    with cgutils.for_range(builder, num_groups) as loop:
        at = builder.mul(loop.index, whole(GROUP_SIZE * NUM_LANES * bits // 8))
        words = [
            load(integers, weights, builder.add(at, whole(number * NUM_LANES * 4)))
            for number in range(_QUADS * bits // 8)
        ]
        if bits == 4:
            mask, shift = constant(integers, 0x0F0F0F0F), constant(integers, 4)
            upper = [builder.and_(builder.lshr(word, shift), mask) for word in words]
            words = [builder.and_(word, mask) for word in words] + upper
        at = builder.mul(loop.index, whole(2 * NUM_LANES * 2))
        scale, least = (
            builder.fpext(load(halves, scales, builder.add(at, whole(start))), floats) for start in (0, NUM_LANES * 2)
        )
        for row, total in enumerate(totals):
            at = builder.add(builder.mul(size, whole(row)), builder.mul(loop.index, whole(GROUP_SIZE)))
            products = constant(integers, 0)
            for number, word in enumerate(words):
                four = load(_INT, levels, builder.add(at, whole(4 * number)))
                products = builder.call(dot, [products, word, in_all_lanes(four, integers)])
            at = builder.mul(builder.add(builder.mul(num_groups, whole(row)), loop.index), whole(4))
            factor = builder.fmul(scale, in_all_lanes(load(_FLOAT, row_scales, at), floats))
            added = builder.call(multiply_add, [builder.sitofp(products, floats), factor, builder.load(total)])
            summed = in_all_lanes(load(_FLOAT, sums, at), floats)
            builder.store(builder.call(multiply_add, [least, summed, added]), total)
    for row, total in enumerate(totals):
        builder.store(builder.load(total), place(floats, out, builder.mul(out_stride, whole(row))), align=4)


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

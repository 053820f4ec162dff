"""LLVM code on vectors, inside functions that Numba compiles: the loops that its compiler would not find by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

cgutils: Any = untyped_cgutils
"""Numba's helpers, which have no types."""
BYTE, INT, HALF, FLOAT = ir.IntType(8), ir.IntType(32), ir.HalfType(), ir.FloatType()
_FEATURES = llvmlite.binding.get_host_cpu_features()


def has_feature(name: str) -> bool:
    """Whether this processor has something, by LLVM's name for it."""
    return bool(_FEATURES.get(name))


class Vectors:
    """Writes code on vectors of 32-bit numbers.

    Args:
        builder: at the place where the code is to be.
        num_lanes: numbers of a vector.
    """

    def __init__(self, builder: Any, num_lanes: int) -> None:
        self._builder, self._num_lanes = builder, num_lanes
        self.integers, self.floats, self.halves = (ir.VectorType(kind, num_lanes) for kind in (INT, FLOAT, HALF))

    def start(self, array: Any) -> Any:
        """Address of an array's first element; from there all offsets are in bytes."""
        return self._builder.bitcast(array.data, BYTE.as_pointer())

    def place(self, kind: Any, start: Any, offset: Any) -> Any:
        """Address of something behind `start`."""
        return self._builder.bitcast(self._builder.gep(start, [offset]), kind.as_pointer())

    def load(self, kind: Any, start: Any, offset: Any) -> Any:
        """What lies there, aligned or not."""
        return self._builder.load(self.place(kind, start, offset), align=1)

    def store(self, value: Any, start: Any, offset: Any) -> None:
        """Put something there, aligned or not."""
        self._builder.store(value, self.place(value.type, start, offset), align=1)

    def everywhere(self, value: Any, kind: Any) -> Any:
        """A vector with the same number in all lanes."""
        nothing = ir.Constant(kind, ir.Undefined)
        first = self._builder.insert_element(nothing, value, ir.Constant(INT, 0))
        return self._builder.shuffle_vector(first, nothing, self.constant(self.integers, 0))

    def constant(self, kind: Any, value: float) -> Any:
        """As `everywhere`, of a number that is known."""
        return ir.Constant(kind, [value] * self._num_lanes)

    def total(self) -> Any:
        """A variable for a vector of sums, 0 now."""
        return cgutils.alloca_once_value(self._builder, self.constant(self.floats, 0.0))

    def call(self, name: str, *arguments: Any) -> Any:
        """An LLVM intrinsic of vectors that are all of one type."""
        kind = arguments[0].type
        function_type = ir.FunctionType(kind, [kind] * len(arguments))
        function = cgutils.get_or_insert_function(self._builder.module, function_type, name)
        return self._builder.call(function, arguments)

    def sum(self, vector: Any) -> Any:
        """Sum of a vector of float32 numbers, in any order."""
        name = f"llvm.vector.reduce.fadd.v{self._num_lanes}f32"
        function_type = ir.FunctionType(FLOAT, [FLOAT, self.floats])
        function = cgutils.get_or_insert_function(self._builder.module, function_type, name)
        return self._builder.call(function, [ir.Constant(FLOAT, 0.0), vector], fastmath=("reassoc",))

    def add_product(self, total: Any, left: Any, right: Any) -> None:
        """total += left * right, rounded once."""
        added = self.call(f"llvm.fma.v{self._num_lanes}f32", left, right, self._builder.load(total))
        self._builder.store(added, total)


def on_arrays(num_arrays: int, generate: Callable[[Any, Sequence[Any]], None]) -> Callable[..., None]:
    """A function of arrays, for use in compiled functions, by code that `generate` writes.

    Args:
        num_arrays: how many it takes.
        generate: takes the builder and the arrays, as Numba has them: with `data`, `shape` and `strides`.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds_and_values = zip(signature.args, arguments, strict=True)
        generate(builder, [context.make_array(kind)(context, builder, value) for kind, value in kinds_and_values])
        return context.get_dummy_value()

    # Numba wants to know the number of arguments from the function itself.
    def of_three(_: Any, a: Any, b: Any, c: Any) -> Any:
        return types.void(a, b, c), code

    def of_four(_: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return types.void(a, b, c, d), code

    def of_six(_: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return types.void(a, b, c, d, e, f), code

    functions: dict[int, Any] = {3: of_three, 4: of_four, 6: of_six}
    return intrinsic(functions[num_arrays])

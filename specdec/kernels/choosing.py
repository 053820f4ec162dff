"""Which kernel serves how many rows, from how long each takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

from specdec.kernels.kernel import KERNEL_NAMES, LAYOUTS, KernelName, Layout, layout_of
from specdec.kernels.linear import ROW_COUNTS
from specdec.kernels.measuring import Seconds

_WORTH = 1.03
"""By how much a kernel must be faster to take the place of PyTorch's own, and more copies that of fewer."""
_PLAIN_ROWS = 2
"""Beyond it packed weights serve if there are any: alone, `transposed` and `batched` seem as fast with four rows, but
between the other steps of a forward pass they are not (docs/experiments.md)."""
_IMPORTANCE = {1: 2, 2: 1, 4: 2, 8: 2, 16: 1, 64: 1}
"""Of `ROW_COUNTS`, where a layout suits one and not another: decoding and windows of one sequence come first."""

Layouts = tuple[frozenset[Layout], ...]
"""What may be held of a weight, in the order of preference."""

PLAIN: Layouts = (frozenset({"plain"}),)
ONE_COPY: Layouts = tuple(frozenset[Layout]({layout}) for layout in LAYOUTS)
TWO_COPIES: Layouts = (*ONE_COPY, *(frozenset[Layout](pair) for pair in combinations(LAYOUTS, 2)))


@dataclass(frozen=True)
class Choice:
    """The kernels of one shape."""

    kernels: tuple[KernelName, ...]
    """For each of `ROW_COUNTS`."""

    @property
    def layouts(self) -> frozenset[Layout]:
        """What they need of the weight."""
        return frozenset(layout_of(name) for name in self.kernels)

    def __str__(self) -> str:
        """Such as `batched 1, transposed 2, packed 4 8 16 64`: each kernel with the `ROW_COUNTS` that it serves."""
        return ", ".join(
            f"{name} " + " ".join(str(count) for count, _ in served)
            for name, served in groupby(zip(ROW_COUNTS, self.kernels, strict=True), key=lambda pair: pair[1])
        )


def always(name: KernelName) -> Choice:
    """One kernel for any number of rows."""
    return Choice((name,) * len(ROW_COUNTS))


DEFAULT = always("default")
INVARIANT = always("packed")


def choose_kernels(seconds: Seconds, allowed: Layouts) -> Choice:
    """The kernels that take least time.

    Args:
        seconds: of one shape; `default` has been timed for all of `ROW_COUNTS`.
        allowed: what may be held of the weight.
    """
    best = {count: min(times[count] for times in seconds.values() if count in times) for count in ROW_COUNTS}

    def slowness(choice: Choice) -> float:
        pairs = zip(ROW_COUNTS, choice.kernels, strict=True)
        return sum(_IMPORTANCE[count] * seconds[name][count] / best[count] for count, name in pairs)

    chosen = DEFAULT
    for layouts in allowed:
        choice = _fastest(seconds, layouts)
        if choice is not None and slowness(choice) * _WORTH < slowness(chosen):
            chosen = choice
    return chosen


def _fastest(seconds: Mapping[KernelName, Mapping[int, float]], layouts: frozenset[Layout]) -> Choice | None:
    """The fastest kernels that make do with these layouts; None: for some number of rows there is none."""
    chosen: list[KernelName] = []
    for count in ROW_COUNTS:
        timed: Sequence[KernelName] = [
            name
            for name in KERNEL_NAMES
            if layout_of(name) in layouts
            and count in seconds.get(name, {})
            and (count <= _PLAIN_ROWS or layouts == {"plain"} or name not in ("transposed", "batched"))
        ]
        if not timed:
            return None
        fastest = min(timed, key=lambda name: seconds[name][count] * (1 if name == "default" else _WORTH))
        chosen.append(fastest)
    return Choice(tuple(chosen))

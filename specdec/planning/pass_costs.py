"""How long a forward pass takes, from points that were measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from specdec.forward_costs import ForwardCosts


class PassPoint(NamedTuple):
    """A pass that was timed."""

    rows: int
    """New tokens of all its sequences."""
    seconds: float
    sequences: int | None = None
    """None: the time is taken to depend on the rows alone."""


class PassCosts:
    """Seconds of a pass by its rows and, if the points say so, by its sequences.

    Linear between points and beyond the last two, in rows and then in sequences; constant before the first one, and
    everywhere if there is but one. More rows or sequences never take less.

    Args:
        points: in any order.

    Raises:
        ValueError: no points, a number that cannot be, the same point twice, or only some name their sequences.
    """

    def __init__(self, points: Iterable[PassPoint]) -> None:
        self.points = tuple(sorted(points, key=lambda point: (point.sequences or 0, point.rows)))
        if len({point.sequences is None for point in self.points}) > 1:
            raise ValueError("either all points of a pass name their sequences, or none does")
        by_sequences: dict[int, list[tuple[int, float]]] = {}
        for rows, seconds, sequences in self.points:
            if sequences is not None and sequences < 1:
                raise ValueError("a pass has at least one sequence")
            by_sequences.setdefault(1 if sequences is None else sequences, []).append((rows, seconds))
        if not by_sequences:
            raise ValueError("the costs of a pass need at least one point")
        self._sequences = sorted(by_sequences)
        self._curves = [ForwardCosts(by_sequences[sequences]) for sequences in self._sequences]

    @classmethod
    def constant(cls, seconds: float) -> PassCosts:
        """The same for every pass."""
        return cls([PassPoint(1, seconds)])

    @property
    def is_constant(self) -> bool:
        """Whether every pass takes the same time."""
        return len(self.points) == 1

    def seconds(self, rows: float, sequences: float = 1) -> float:
        """Duration of a pass."""
        known = self._sequences
        if len(known) == 1 or sequences <= known[0]:
            return self._curve(0, rows)
        upper = min(bisect_left(known, sequences), len(known) - 1)
        low, high = self._curve(upper - 1, rows), self._curve(upper, rows)
        return low + (high - low) * (sequences - known[upper - 1]) / (known[upper] - known[upper - 1])

    def _curve(self, index: int, rows: float) -> float:
        """Of so many rows, with the number of sequences of a curve; no less than with fewer sequences."""
        return max(curve.seconds(rows) for curve in self._curves[: index + 1])

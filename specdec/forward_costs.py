"""What a forward pass costs, by its rows: measured once, then kept up to date by the passes that are run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

_LEVEL_RATE = 0.03
"""Weight of one pass in the level of all costs, which follows contexts that grow and neighbours on the machine. It is
little: what is thought too dear is never tried, so others must not be thought dearer for the passes that are run."""
_POINT_RATE = 0.1
"""Weight of one pass in the costs next to its rows."""
_LARGEST_STEP = 2.0
"""A pass that took longer than so many times what was expected counts as that much: one stall is no new level."""


class ForwardCosts:
    """Seconds of a forward pass as a function of its rows, linear between measured points and beyond the last two.

    Args:
        points: (rows, seconds), at least one, rows increasing from 1 or more, seconds above 0.

    Raises:
        ValueError: the points are none of that.
    """

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        self._rows: list[int] = []
        self._seconds: list[float] = []
        for rows, seconds in points:
            if rows < 1 or seconds <= 0 or (self._rows and rows <= self._rows[-1]):
                raise ValueError("forward costs need increasing rows and times above 0")
            self._rows.append(rows)
            # A pass with more rows never takes less: what was measured less is noise.
            self._seconds.append(max(seconds, self._seconds[-1] if self._seconds else 0.0))
        if not self._rows:
            raise ValueError("forward costs need at least one point")
        self._level = 1.0

    def seconds(self, rows: float) -> float:
        """Expected duration of a pass of so many rows, in seconds; no less than with fewer."""
        expected = sum(weight * self._seconds[index] for index, weight in self._weights(rows))
        return self._level * (max(expected, self._seconds[-1]) if rows > self._rows[-1] else expected)

    def observe(self, rows: int, seconds: float) -> None:
        """A pass of so many rows took so long."""
        if rows < 1 or seconds <= 0:
            return
        ratio = min(max(seconds / self.seconds(rows), 1 / _LARGEST_STEP), _LARGEST_STEP)
        self._level *= ratio**_LEVEL_RATE
        for index, weight in self._weights(rows):
            self._seconds[index] *= ratio ** (_POINT_RATE * min(max(weight, 0.0), 1.0))
        # What was seen just now is right: fewer rows take no longer, more rows no less.
        nearest, _ = max(self._weights(rows), key=lambda share: share[1])
        for index in range(nearest):
            self._seconds[index] = min(self._seconds[index], self._seconds[nearest])
        for index in range(nearest + 1, len(self._seconds)):
            self._seconds[index] = max(self._seconds[index], self._seconds[nearest])

    def _weights(self, rows: float) -> list[tuple[int, float]]:
        """The two points that a number of rows lies between, or the nearest one, with their shares."""
        if len(self._rows) == 1 or rows <= self._rows[0]:
            return [(0, 1.0)]
        upper = min(bisect_left(self._rows, rows), len(self._rows) - 1)
        lower = upper - 1
        share = (rows - self._rows[lower]) / (self._rows[upper] - self._rows[lower])
        return [(lower, 1.0 - share), (upper, share)]

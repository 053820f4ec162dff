"""What a forward pass costs, by its rows and sequences: measured once, then kept up to date by the passes that run."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable

_LEVEL_RATE = 0.03
"""Weight of one pass in the level of all costs, which follows contexts that grow and neighbours on the machine. It is
little: what is thought too dear is never tried, so others must not be thought dearer for the passes that are run."""
_POINT_RATE = 0.1
"""Weight of one pass in the costs next to its rows, and in what sequences cost."""
_LARGEST_STEP = 2.0
"""A pass that took longer than so many times what was expected counts as that much: one stall is no new level."""


class ForwardCosts:
    """Seconds of a forward pass: a function of its rows, and so much more for each sequence but the first.

    Rows of many sequences cost more than as many of one, as attention is computed sequence by sequence. In rows the
    costs are linear between measured points and beyond the last two.

    Args:
        points: (rows, seconds) of passes with one sequence; at least one, rows increasing from 1 or more, seconds above
            0.
        each_seconds: what every further sequence adds.

    Raises:
        ValueError: the points are none of that, or `each_seconds` is below 0.
    """

    def __init__(self, points: Iterable[tuple[int, float]], each_seconds: float = 0.0) -> None:
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
        if each_seconds < 0:
            raise ValueError("forward costs of a sequence are not below 0")
        self._each_seconds = each_seconds
        self._level = 1.0

    @classmethod
    def measured(cls, passes: Iterable[tuple[int, int, float]]) -> ForwardCosts:
        """From passes that were timed.

        Args:
            passes: (rows, sequences, seconds); those of one sequence with increasing rows.

        Raises:
            ValueError: there is none of one sequence, or the numbers cannot be.
        """
        timed = list(passes)
        if any(sequences < 1 for _, sequences, _ in timed):
            raise ValueError("forward costs need at least one sequence in a pass")
        alone = cls((rows, seconds) for rows, sequences, seconds in timed if sequences == 1)
        added = [
            (seconds - alone.seconds(rows)) / (sequences - 1) for rows, sequences, seconds in timed if sequences > 1
        ]
        alone._each_seconds = max(0.0, statistics.median(added)) if added else 0.0
        return alone

    def seconds(self, rows: float, sequences: float = 1.0) -> float:
        """Expected duration of a pass of so many rows and sequences, in seconds; no less than with fewer."""
        return self._level * (self._of_rows(rows) + self._of_sequences(sequences))

    def empty_seconds(self, rows: float) -> float:
        """What a pass of so many rows would have taken with nothing in it, by what rows and sequences cost there."""
        halves = 2 * self._of_rows(rows / 2)
        return max(0.0, self._level * (halves - self._of_rows(rows) - self._each_seconds))

    def observe(self, rows: int, seconds: float, sequences: int = 1) -> None:
        """A pass of so many rows and sequences took so long."""
        if rows < 1 or sequences < 1 or seconds <= 0:
            return
        ratio = min(max(seconds / self.seconds(rows, sequences), 1 / _LARGEST_STEP), _LARGEST_STEP)
        of_sequences = self._of_sequences(sequences)
        share = of_sequences / (of_sequences + self._of_rows(rows))
        self._level *= ratio**_LEVEL_RATE
        self._each_seconds *= ratio ** (_POINT_RATE * share)
        for index, weight in self._weights(rows):
            self._seconds[index] *= ratio ** (_POINT_RATE * min(max(weight, 0.0), 1.0))
        # What was seen just now is right: fewer rows take no longer, more rows no less.
        nearest, _ = max(self._weights(rows), key=lambda share: share[1])
        for index in range(nearest):
            self._seconds[index] = min(self._seconds[index], self._seconds[nearest])
        for index in range(nearest + 1, len(self._seconds)):
            self._seconds[index] = max(self._seconds[index], self._seconds[nearest])

    def _of_rows(self, rows: float) -> float:
        # As `_weights` has it; the choice of K asks this a hundred times a round.
        points, seconds = self._rows, self._seconds
        if len(points) == 1 or rows <= points[0]:
            return seconds[0]
        upper = min(bisect_left(points, rows), len(points) - 1)
        low, high = seconds[upper - 1], seconds[upper]
        expected = low + (rows - points[upper - 1]) / (points[upper] - points[upper - 1]) * (high - low)
        return max(expected, high) if rows > points[upper] else expected

    def _of_sequences(self, sequences: float) -> float:
        return self._each_seconds * max(0.0, sequences - 1.0)

    def _weights(self, rows: float) -> list[tuple[int, float]]:
        """The two points that a number of rows lies between, or the nearest one, with their shares."""
        if len(self._rows) == 1 or rows <= self._rows[0]:
            return [(0, 1.0)]
        upper = min(bisect_left(self._rows, rows), len(self._rows) - 1)
        lower = upper - 1
        share = (rows - self._rows[lower]) / (self._rows[upper] - self._rows[lower])
        return [(lower, 1.0 - share), (upper, share)]

"""How much prefill goes into a pass beside running sequences, so that their tokens keep coming."""

from __future__ import annotations

_STRETCH = 2.0
"""A pass with prefill may take so many times as long as one without."""
_RATE = 0.2
"""Weight of one pass in what passes are thought to cost."""
_FEWEST_ROWS = 8
_FIRST_ROWS = 32
"""Until passes of both kinds have been timed."""


class PrefillPace:
    """Chooses the rows of prefill by what passes took: those without prefill, and what each row of prefill added.

    Args:
        max_rows: most rows of a pass.
        fixed_rows: always so many; 0: by the times.
    """

    def __init__(self, max_rows: int, fixed_rows: int = 0) -> None:
        self._max_rows = max_rows
        self._fixed_rows = fixed_rows
        self._plain_seconds: float | None = None
        self._row_seconds: float | None = None

    def rows(self) -> int:
        """Most rows of prefill in a pass beside running sequences."""
        if self._fixed_rows:
            return min(self._fixed_rows, self._max_rows)
        if self._plain_seconds is None or self._row_seconds is None:
            return min(_FIRST_ROWS, self._max_rows)
        room_seconds = (_STRETCH - 1) * self._plain_seconds
        if room_seconds >= self._max_rows * self._row_seconds:
            return self._max_rows
        return min(max(int(room_seconds / self._row_seconds), _FEWEST_ROWS), self._max_rows)

    def observe(self, seconds: float, num_running_rows: int, num_prefill_rows: int) -> None:
        """A pass took so long.

        Args:
            seconds: its duration.
            num_running_rows: rows of running sequences.
            num_prefill_rows: rows of prefill.
        """
        if num_running_rows == 0:
            return
        if num_prefill_rows == 0:
            self._plain_seconds = _follow(self._plain_seconds, seconds)
        elif self._plain_seconds is not None:
            added = max(seconds - self._plain_seconds, 0.0) / num_prefill_rows
            self._row_seconds = _follow(self._row_seconds, added)


def _follow(average: float | None, value: float) -> float:
    return value if average is None else average + _RATE * (value - average)

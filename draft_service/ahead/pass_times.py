"""What passes take by their rows, as measured of late."""

from __future__ import annotations

_RATE = 0.05
"""Weight of one pass."""


class PassTimes:
    """A straight line through the passes so far, older ones fading: least squares."""

    def __init__(self) -> None:
        self._rows = self._seconds = 0.0
        self._spread = self._common = 0.0  # variance of the rows, covariance with the seconds
        self._num_seen = 0

    @property
    def seconds_per_row(self) -> float:
        """What one more row takes; 0 as long as all passes had the same number of rows."""
        return max(0.0, self._common / self._spread) if self._spread > 0 else 0.0

    def seconds(self, num_rows: float) -> float:
        """What a pass takes; 0 before any was seen."""
        return max(0.0, self._seconds + self.seconds_per_row * (num_rows - self._rows))

    def observe(self, num_rows: int, seconds: float) -> None:
        """A pass took so long."""
        self._num_seen += 1
        rate = max(_RATE, 1.0 / self._num_seen)
        rows_off, seconds_off = num_rows - self._rows, seconds - self._seconds
        self._rows += rate * rows_off
        self._seconds += rate * seconds_off
        self._spread = (1.0 - rate) * (self._spread + rate * rows_off * rows_off)
        self._common = (1.0 - rate) * (self._common + rate * rows_off * seconds_off)

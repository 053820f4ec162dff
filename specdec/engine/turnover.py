"""How long places stay taken, to tell those who wait when one may be free."""

from __future__ import annotations

import time
from collections.abc import Callable

_RATE = 0.1
"""Weight of one stay in the average."""
_UNKNOWN_SECONDS = 1.0
_SHORTEST_WAIT_SECONDS = 0.05


class Turnover:
    """Measures stays.

    Args:
        clock: seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[object, float] = {}
        self._mean_seconds: float | None = None

    def begin(self, guest: object) -> None:
        """Somebody takes a place."""
        self._began[guest] = self._clock()

    def end(self, guest: object) -> None:
        """Its place is free; harmless if it has none."""
        began = self._began.pop(guest, None)
        if began is None:
            return
        seconds = self._clock() - began
        mean = self._mean_seconds
        self._mean_seconds = seconds if mean is None else mean + _RATE * (seconds - mean)

    def wait_seconds(self, num_ahead: int) -> float:
        """When a place is likely to be free for one who comes after `num_ahead` others, in seconds from now.

        The mean stay so far, shared by all who may leave (Little's law).
        """
        mean = _UNKNOWN_SECONDS if self._mean_seconds is None else self._mean_seconds
        return max(mean * (num_ahead + 1) / max(len(self._began), 1), _SHORTEST_WAIT_SECONDS)

"""How long a replica that failed is left alone."""

from __future__ import annotations

import time

_FIRST_PAUSE_SECONDS = 0.25
_LAST_PAUSE_SECONDS = 60.0
_MAX_DOUBLINGS = 10
_PAUSE_PER_SECOND_LOST = 16
"""After a failure that cost time, drafting rests this many times as long, so that it costs a few percent at most."""


class Rest:
    """Pauses, which grow with each failure in a row: of one request with a draft service, or of all with a replica."""

    def __init__(self) -> None:
        self._num_failures = 0
        self._ends = 0.0

    @property
    def is_over(self) -> bool:
        """Whether it may be asked again."""
        return time.perf_counter() >= self._ends

    def failed(self, seconds_lost: float = 0.0) -> None:
        """It failed, and was waited for in vain for so long."""
        pause_seconds = max(_FIRST_PAUSE_SECONDS * 2**self._num_failures, _PAUSE_PER_SECOND_LOST * seconds_lost)
        self._num_failures = min(self._num_failures + 1, _MAX_DOUBLINGS)
        self._ends = time.perf_counter() + min(pause_seconds, _LAST_PAUSE_SECONDS)

    def worked(self) -> None:
        """It answered."""
        self._num_failures = 0

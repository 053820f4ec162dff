"""How many rows a pass of drafting ahead may have, so that it stands in nobody's way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from draft_service.ahead.pass_times import PassTimes

_MEMORY_SECONDS = 0.5
"""What was done so long ago counts a third."""
_BUSY = 0.5
"""With so much of the time taken by proposals for others, nothing is drafted ahead."""


class AheadBudget:
    """Follows how much of the time goes into proposals that somebody waits for.

    A pass of drafting ahead is not broken off, so a commit that comes meanwhile waits for its end. A sequence that is
    alone is never hurt by its own; with others, the share of the time that their proposals take says how often one of
    them would wait.

    Args:
        max_rows: of a pass, while the drafter is idle; 0: nothing is ever drafted ahead.
        clock: seconds.
    """

    def __init__(self, max_rows: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.max_rows = max_rows
        self.times = PassTimes()
        """Of passes of few rows, those that draft ahead included."""
        self._clock = clock
        self._share = 0.0
        self._seen = clock()

    def now(self) -> float:
        """Seconds by its clock."""
        return self._clock()

    def worked(self, seconds: float) -> None:
        """A pass for proposals took so long."""
        self._fade()
        self._share += seconds / _MEMORY_SECONDS

    def rows(self, num_sequences: int) -> int:
        """Most rows of the next pass.

        Args:
            num_sequences: how many are running.
        """
        self._fade()
        if num_sequences < 1:
            return 0
        others = self._share * (num_sequences - 1) / num_sequences
        return int(self.max_rows * max(0.0, 1.0 - others / _BUSY))

    def _fade(self) -> None:
        now = self._clock()
        self._share *= math.exp((self._seen - now) / _MEMORY_SECONDS)
        self._seen = now

"""Tells the operator of callers that were turned away, and not more often than anybody reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from specdec.serving.surrounding import Context

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 60.0
"""Between two lines."""


class RefusedCallers:
    """Counts calls without a good identity.

    Args:
        clock: seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: float | None = None
        self._num_untold = 0

    def note(self, context: Context) -> None:
        """A call was refused. What it showed is not looked at: it may be nearly right."""
        self._num_untold += 1
        now = self._clock()
        if self._told is not None and now - self._told < PERIOD_SECONDS:
            return
        count = "a call was" if self._num_untold == 1 else f"{self._num_untold} calls were"
        logger.warning("%s refused for want of a good identity; the last came from %s", count, context.peer())
        self._told, self._num_untold = now, 0

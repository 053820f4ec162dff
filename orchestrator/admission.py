"""Which requests are let in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.replicas.targets import Targets
from specdec.engine.turnover import Turnover
from specdec.errors import ResourceExhaustedError, UnavailableError
from specdec.telemetry.metrics import OrchestratorMetrics

_RATE = 0.2
"""Weight of one request in the averages."""
_SURE = 0.5
"""A request is refused only if half of what is expected is too long for it: the estimates are of others."""


class Admission:
    """Counts the requests that run, and refuses what cannot be served.

    Nothing queues here: what is admitted begins at once, and targets have queues of their own, bounded by memory.

    Args:
        limit: most requests at once.
        targets: replicas of the target.
        metrics: where running requests are counted.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        limit: int,
        targets: Targets,
        metrics: OrchestratorMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._targets = targets
        self._metrics = metrics
        self._clock = clock
        self._turnover = Turnover(clock)
        self._num_running = 0
        self._first_token_seconds = 0.0
        self._token_seconds = 0.0
        self._is_draining = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def drain(self) -> None:
        """Refuse all further requests, and wait until the running ones are done."""
        self._is_draining = True
        await self._is_idle.wait()

    @contextmanager
    def admitted(self, seconds_left: float | None = None, least_tokens: int = 1) -> Iterator[Arrival]:
        """Count a request as running, or refuse it.

        Args:
            seconds_left: until its deadline; None: it has none.
            least_tokens: tokens that it needs at least; it may stop after the first unless it says otherwise.

        Raises:
            UnavailableError: this orchestrator shuts down, or no target takes sequences.
            ResourceExhaustedError: too many are running, or the request would most likely miss its deadline; says when
                to try again.
        """
        if self._is_draining:
            raise UnavailableError("the orchestrator is shutting down; use another replica")
        if not self._targets.is_available:
            raise UnavailableError(f"the target is not available: {self._targets.problem}")
        if self._num_running >= self._limit:
            raise ResourceExhaustedError(
                f"{self._limit} requests are running, which is the limit; try again later",
                self._turnover.wait_seconds(0),
            )
        expected_seconds = self._first_token_seconds + (least_tokens - 1) * self._token_seconds
        if seconds_left is not None and self._num_running and seconds_left < _SURE * expected_seconds:
            raise ResourceExhaustedError(
                f"the deadline is in {max(seconds_left, 0.0):.2g} s, and about {expected_seconds:.2g} s are needed "
                "under the present load; allow more time or try again later",
                self._turnover.wait_seconds(0),
            )
        arrival = Arrival(self, self._clock())
        self._turnover.begin(arrival)
        self._count(1)
        try:
            yield arrival
        finally:
            self._turnover.end(arrival)
            self._count(-1)

    def _count(self, change: int) -> None:
        self._num_running += change
        self._metrics.active_requests(self._num_running)
        if self._num_running:
            self._is_idle.clear()
        else:
            self._is_idle.set()

    def _observe(self, first_token_seconds: float | None, token_seconds: float | None) -> None:
        if first_token_seconds is not None:
            rate = _RATE if self._first_token_seconds else 1.0
            self._first_token_seconds += rate * (first_token_seconds - self._first_token_seconds)
        if token_seconds is not None:
            rate = _RATE if self._token_seconds else 1.0
            self._token_seconds += rate * (token_seconds - self._token_seconds)


class Arrival:
    """A request that was admitted, and how its tokens come.

    Args:
        admission: learns it.
        began: when it was admitted, by the admission's clock.
    """

    def __init__(self, admission: Admission, began: float) -> None:
        self._admission = admission
        self._last = began
        self._is_first = True

    def tokens_came(self, count: int) -> None:
        """So many tokens were committed together."""
        if not count:
            return
        now = self._admission._clock()
        seconds, self._last = now - self._last, now
        if self._is_first:
            self._admission._observe(seconds, None)
        else:
            self._admission._observe(None, seconds / count)
        self._is_first = False

"""Which requests are let in, and what the others are told."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import cast

import pytest

from orchestrator.admission import Admission
from orchestrator.replicas.targets import Targets
from specdec.errors import ResourceExhaustedError, UnavailableError
from specdec.telemetry import names
from tests.orchestrator.counting import Counting


class FakeTargets:
    is_available = True
    problem = "it is asleep"


class Door:
    """An admission with a clock of its own."""

    def __init__(self, limit: int = 2) -> None:
        self.now = 0.0
        self.targets = FakeTargets()
        self.counting = Counting()
        self.it = Admission(limit, cast("Targets", self.targets), self.counting.metrics, lambda: self.now)

    def run(self, *seconds: float, count: int = 1) -> None:
        """A request whose tokens come after so long each, `count` at a time after the first."""
        with self.it.admitted() as arrival:
            for number, pause in enumerate(seconds):
                self.now += pause
                arrival.tokens_came(count if number else 1)


async def test_beyond_the_limit_requests_are_refused_with_a_time_to_try_again() -> None:
    door = Door()
    with ExitStack() as running:
        for _ in range(2):
            running.enter_context(door.it.admitted())
        with pytest.raises(ResourceExhaustedError, match="2 requests are running") as refused, door.it.admitted():
            pass
        assert refused.value.retry_seconds is not None
        assert door.counting.total(names.ACTIVE_REQUESTS) == 2
    with door.it.admitted():
        assert door.counting.total(names.ACTIVE_REQUESTS) == 1
    assert door.counting.total(names.ACTIVE_REQUESTS) == 0


async def test_nobody_is_let_in_without_a_target_or_while_shutting_down() -> None:
    door = Door()
    door.targets.is_available = False
    with pytest.raises(UnavailableError, match="it is asleep"), door.it.admitted():
        pass
    door.targets.is_available = True
    with door.it.admitted():
        draining = asyncio.create_task(door.it.drain())
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="shutting down"), door.it.admitted():
            pass
        assert not draining.done()
    await asyncio.wait_for(draining, 1)


async def test_a_request_that_would_miss_its_deadline_is_refused_at_once() -> None:
    door = Door()
    door.run(4.0, 0.5, 0.5)
    # An idle system says nothing of how it is now.
    with door.it.admitted(seconds_left=0.1):
        with door.it.admitted(seconds_left=2.1):
            pass
        too_late = door.it.admitted(seconds_left=1.9)
        with pytest.raises(ResourceExhaustedError, match=r"about 4 s are needed") as refused, too_late:
            pass
        assert refused.value.retry_seconds is not None
        # Of one that cannot stop early all its tokens count, half a second each.
        with pytest.raises(ResourceExhaustedError), door.it.admitted(seconds_left=10.0, least_tokens=41):
            pass
        with door.it.admitted(seconds_left=13.0, least_tokens=41):
            pass
        with door.it.admitted(seconds_left=None, least_tokens=1000):
            pass


async def test_tokens_of_one_round_share_its_time() -> None:
    door = Door()
    door.run(1.0, 0.8, 0.8, count=4)
    with door.it.admitted():
        with door.it.admitted(seconds_left=2.6, least_tokens=21):
            pass
        with pytest.raises(ResourceExhaustedError), door.it.admitted(seconds_left=2.4, least_tokens=21):
            pass


async def test_it_follows_what_requests_take_of_late() -> None:
    door = Door()
    door.run(4.0)
    for _ in range(30):
        door.run(0.1)
    with door.it.admitted(), door.it.admitted(seconds_left=0.1):
        pass

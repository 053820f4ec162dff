"""How long a sequence may be left alone: what an orchestrator forgot must not hold memory for ever."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)

LEASE_SECONDS = 120.0
"""Default. A client may read nothing for 30 s and a round may take 60 s; an orchestrator is silent for no longer."""


class Leases(Generic[Holder]):
    """Who was last heard of when.

    All leases are equally long, so the one that ends first is always the one renewed longest ago: nothing is searched.

    Args:
        seconds: length of a lease.
        clock: seconds, for tests.
    """

    def __init__(self, seconds: float = LEASE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._ends: OrderedDict[Holder, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ends)

    def renew(self, *holders: Holder) -> None:
        """They have been heard of, or get a lease."""
        ends = self._clock() + self.seconds
        for holder in holders:
            self._ends[holder] = ends
            self._ends.move_to_end(holder)

    def end(self, holder: Holder) -> None:
        """It is gone; harmless if it has no lease."""
        self._ends.pop(holder, None)

    def expired(self) -> list[Holder]:
        """Those whose lease is over, the oldest first. They keep it until it is renewed or ended."""
        now = self._clock()
        found = []
        for holder, ends in self._ends.items():
            if ends > now:
                break
            found.append(holder)
        return found

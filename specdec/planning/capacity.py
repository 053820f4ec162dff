"""How many clients one target serves at a latency goal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_MOST_STEPS = 100
"""Of a search for the number of groups; it takes a few."""
_ROUNDING = 1e-9


class Absence(NamedTuple):
    """One way that a client is away after a pass."""

    share: float
    """How often; the shares of all ways add up to 1."""
    seconds: float


@dataclass(frozen=True)
class Shift:
    """A steady state."""

    num_clients: int
    num_groups: float
    """How many passes the target runs in a client's round, on average, its own included; in each of them is a group."""
    pass_seconds: float
    """Occupies the device."""
    round_seconds: float
    """From a client's verdict to its next one, on average."""

    @property
    def busy_share(self) -> float:
        """Share of the time in which the device works."""
        return min(1.0, self.num_groups * self.pass_seconds / self.round_seconds)


@dataclass(frozen=True)
class Serving:
    """What one round takes, as the target sees it.

    A pass takes every client that is ready, and the next one starts when it is over. A client that is away for no time
    is in the next pass; one that is away for Z misses `ceil(Z / pass)` of them. So of N clients each pass has N / c,
    where c is the mean of `1 + ceil(Z / pass(N / c))` over the ways to be away: the smallest such c, as groups break up
    by themselves and never join. A round then takes `c * pass(N / c)`. With fewer clients than groups the target idles,
    and a round takes `Z + pass(1)`.
    """

    pass_seconds: Callable[[float], float]
    """Of so many sequences, by which the device is occupied; no less for more."""
    absences: Callable[[int, float], Sequence[Absence]]
    """Of so many clients with passes of such a duration; no less for more clients."""
    waits: bool = False
    """Whether the target waits for those who are away: then all are in every pass."""

    def shift(self, num_clients: int) -> Shift:
        """So many clients, at least 1."""
        if self.waits:
            seconds = self.pass_seconds(num_clients)
            return Shift(num_clients, 1, seconds, seconds + _mean(self.absences(num_clients, seconds)))
        return self._settled(num_clients, lambda away, seconds: math.ceil(away / seconds - _ROUNDING))

    def most_clients(self, longest_round_seconds: float, limit: int) -> Shift | None:
        """With as many clients as keep rounds that short; None: not even one does.

        Args:
            longest_round_seconds: the goal.
            limit: most clients that are looked at.
        """
        # If nobody had to wait for a pass to end, more clients would never make rounds shorter, so the largest number
        # that fits is found by halving. Whole passes make rounds no shorter; with them groups may get fewer at some
        # number of clients, so the numbers below are looked at one by one.
        low, high = 1, limit
        while low <= high:
            middle = (low + high) // 2
            if self._least_seconds(middle) <= longest_round_seconds:
                low = middle + 1
            else:
                high = middle - 1
        shifts = map(self.shift, range(high, 0, -1))
        return next((shift for shift in shifts if shift.round_seconds <= longest_round_seconds), None)

    def _least_seconds(self, num_clients: int) -> float:
        """A bound for the round of so many clients: as if passes began whenever somebody is back."""
        if self.waits:
            return self.shift(num_clients).round_seconds
        # Cut a little below, as the search for it ends before it is reached.
        return self._settled(num_clients, lambda away, seconds: away / seconds).round_seconds * (1 - 1e-6)

    def _settled(self, num_clients: int, missed_passes: Callable[[float, float], float]) -> Shift:
        """The smallest number of groups that reproduces itself."""
        num_groups = 1.0
        for _ in range(_MOST_STEPS):
            seconds = self.pass_seconds(max(1.0, num_clients / num_groups))
            absences = self.absences(num_clients, seconds)
            needed = 1 + sum(absence.share * missed_passes(absence.seconds, seconds) for absence in absences)
            if needed >= num_clients:
                # Each is alone in its pass.
                alone = self.pass_seconds(1)
                away = _mean(self.absences(num_clients, alone))
                return Shift(num_clients, num_clients, alone, max(num_clients * alone, away + alone))
            if needed <= num_groups + _ROUNDING:
                break
            num_groups = needed
        return Shift(num_clients, num_groups, seconds, num_groups * seconds)


def _mean(absences: Sequence[Absence]) -> float:
    return sum(absence.share * absence.seconds for absence in absences)

"""How many clients one target serves at a latency goal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Shift:
    """A steady state: clients in groups that take turns at the target, one pass each."""

    num_clients: int
    num_groups: int
    pass_seconds: float
    """Occupies the device."""
    round_seconds: float
    """From a client's verdict to its next one."""

    @property
    def busy_share(self) -> float:
        """Share of the time in which the device works."""
        return self.num_groups * self.pass_seconds / self.round_seconds


@dataclass(frozen=True)
class Serving:
    """What one round takes, as the target sees it.

    A pass takes every client that is ready. After it they are away, drafting and in the network, for `away_seconds`. If
    that is longer than a pass, others have theirs meanwhile: c groups take turns, and a round takes
    `max(c * pass, away + pass)`: the turns of all groups or the way of one, whichever is longer. The c that makes
    rounds shortest is taken.
    """

    pass_seconds: Callable[[float], float]
    """Of so many sequences, by which the device is occupied; no less for more."""
    away_seconds: Callable[[int, float], float]
    """Of so many clients with passes of such a duration; no less for more clients."""

    def shift(self, num_clients: int, longest_round_seconds: float) -> Shift | None:
        """The shortest round for so many clients; None: all are longer than that."""
        best: Shift | None = None
        shortest_pass, limit = self.pass_seconds(1), longest_round_seconds
        for num_groups in range(1, num_clients + 1):
            if num_groups * shortest_pass > limit:
                break  # The turns of so many take longer, whatever is in them.
            seconds = self.pass_seconds(num_clients / num_groups)
            round_seconds = max(num_groups * seconds, self.away_seconds(num_clients, seconds) + seconds)
            if round_seconds <= limit and (best is None or round_seconds < best.round_seconds):
                best = Shift(num_clients, num_groups, seconds, round_seconds)
                limit = round_seconds
        return best

    def most_clients(self, longest_round_seconds: float, limit: int) -> Shift | None:
        """With as many clients as keep rounds that short; None: not even one does.

        Args:
            longest_round_seconds: the goal.
            limit: most clients that are looked at, at least 1.
        """
        # More clients never make a round shorter, so the largest number that does is found by halving.
        low, high, found = 1, limit, None
        while low <= high:
            middle = (low + high) // 2
            shift = self.shift(middle, longest_round_seconds)
            if shift is None:
                high = middle - 1
            else:
                low, found = middle + 1, shift
        return found

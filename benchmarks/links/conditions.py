"""What a link does to the bytes on it."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LinkConditions:
    """The same in both directions.

    Raises:
        ValueError: a time is negative, the jitter is more than half of the round trip, or there is no bandwidth.
    """

    rtt_seconds: float = 0.0
    """There and back; each way takes half of it."""
    jitter_seconds: float = 0.0
    """Each way takes up to so much more or less, uniformly, chunk by chunk. Bytes never overtake each other."""
    bytes_per_second: float | None = None
    """Each way, for each connection; None: no limit."""
    seed: int = 0
    """Of the jitter."""

    def __post_init__(self) -> None:
        if self.rtt_seconds < 0 or not 0 <= self.jitter_seconds <= self.rtt_seconds / 2:
            raise ValueError("a round trip takes no negative time, and jitter at most half of it")
        if self.bytes_per_second is not None and self.bytes_per_second <= 0:
            raise ValueError("a bandwidth is above 0")


class DeliverySchedule:
    """When the chunks of one direction of one connection are due: absolute times, so that lateness does not add up.

    Args:
        conditions: of the link.
        stream: which direction of which connection this is; each has jitter of its own.
    """

    def __init__(self, conditions: LinkConditions, stream: str = "") -> None:
        self._conditions = conditions
        # Strings are hashed with SHA-512 here, the same in every process.
        self._random = random.Random(f"{conditions.seed} {stream}")
        self._link_free = 0.0
        self._last_due = 0.0

    def change(self, conditions: LinkConditions) -> None:
        """From the next chunk on; the jitter goes on as it was seeded."""
        self._conditions = conditions

    def due(self, arrived: float, num_bytes: int) -> float:
        """When a chunk that arrived now is to be delivered as a whole; never before an earlier one.

        Args:
            arrived: when it arrived, in seconds of the same clock at every call.
            num_bytes: its size.
        """
        conditions = self._conditions
        sent = arrived
        if conditions.bytes_per_second is not None:
            self._link_free = sent = max(arrived, self._link_free) + num_bytes / conditions.bytes_per_second
        delay = conditions.rtt_seconds / 2
        if conditions.jitter_seconds:
            delay += self._random.uniform(-conditions.jitter_seconds, conditions.jitter_seconds)
        self._last_due = max(self._last_due, sent + delay)
        return self._last_due

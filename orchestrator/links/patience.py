"""How long the silence of a replica is taken for work."""

from __future__ import annotations

import math

_TIMES = 8.0
"""A replica may take so many times as long as it did at its slowest of late."""
_DECAY = 0.98
"""Of the slowest, with each answer."""


class Patience:
    """Measures the answers of one replica.

    Keepalive finds out that a process or its machine is frozen; this finds one whose connection answers pings and whose
    model does not come back. A false alarm costs a prefill elsewhere, so it is only heeded where there is an elsewhere.

    Args:
        least_seconds: no silence shorter than this means anything.
    """

    def __init__(self, least_seconds: float) -> None:
        self._least_seconds = least_seconds
        self._slowest_seconds = 0.0
        self._slowest_per_token = 0.0

    def answered(self, seconds: float) -> None:
        """A round was answered so long after it was asked for."""
        self._slowest_seconds = max(self._slowest_seconds * _DECAY, seconds)

    def opened(self, seconds: float, num_tokens: int) -> None:
        """So many tokens were prefilled, with nothing found in the cache."""
        if num_tokens > 0:
            self._slowest_per_token = max(self._slowest_per_token * _DECAY, seconds / num_tokens)

    def round_seconds(self) -> float:
        """For a round; infinite before the first was answered."""
        return max(self._least_seconds, _TIMES * self._slowest_seconds) if self._slowest_seconds else math.inf

    def open_seconds(self, num_tokens: int) -> float:
        """For an open of so many tokens; infinite before the first was answered."""
        if not self._slowest_per_token:
            return math.inf
        return max(self._least_seconds, _TIMES * (self._slowest_seconds + num_tokens * self._slowest_per_token))

"""How likely draft tokens are to be accepted, by their position in the window."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

_HIGHEST_RATE = 0.98


@dataclass(slots=True)
class AcceptanceByPosition:
    """Conditional acceptance: of the windows whose first i tokens were accepted, the share whose next one was.

    Args:
        decay: what a window still counts when the next one comes; above 0, at most 1.
    """

    decay: float
    _accepted: list[float] = field(default_factory=list)
    """By position, and so is the next."""
    _judged: list[float] = field(default_factory=list)
    _windows: list[float] = field(default_factory=list)
    """By size, from 1."""

    def observe(self, num_draft_tokens: int, num_accepted: int) -> None:
        """A window of so many tokens had so many accepted; an empty one says nothing."""
        if num_draft_tokens < 1:
            return
        missing = num_draft_tokens - len(self._windows)
        for counts in (self._accepted, self._judged, self._windows):
            counts[:] = [self.decay * count for count in counts] + [0.0] * missing
        self._windows[num_draft_tokens - 1] += 1.0
        # Tokens behind the first rejection were never judged.
        for position in range(min(num_accepted + 1, num_draft_tokens)):
            self._judged[position] += 1.0
            self._accepted[position] += position < num_accepted

    def fade(self, share: float) -> None:
        """Let all that was observed count so much less."""
        for counts in (self._accepted, self._judged, self._windows):
            counts[:] = [share * count for count in counts]

    def rates(self, prior: Sequence[float], prior_weight: float) -> list[float]:
        """An estimate for each position of `prior`.

        Behind a token that is always rejected nothing is judged any more. So the level of all positions follows the
        number of tokens accepted against what the prior had promised, and each position its own counts on top.

        Args:
            prior: what is taken for a position of which nothing is known.
            prior_weight: how many windows that is worth.
        """
        known = len(self._windows)
        survival, promised, promises = 1.0, 0.0, []
        for rate in prior[:known]:
            survival *= rate
            promised += survival
            promises.append(promised)
        expected = sum(map(operator.mul, promises, self._windows))
        given = prior_weight * (promises[0] if promises else 1.0)
        level = (given + sum(self._accepted)) / (given + expected)
        rates = [min(level * rate, _HIGHEST_RATE) for rate in prior]
        for position, (accepted, judged) in enumerate(zip(self._accepted, self._judged, strict=True)):
            if position < len(rates):
                rates[position] = (prior_weight * rates[position] + accepted) / (prior_weight + judged)
        return rates

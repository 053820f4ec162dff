"""How many of the next draft tokens will be accepted, going by those before."""

from __future__ import annotations

from dataclasses import dataclass

_FADING = 0.97
"""What a round still counts one round later: some thirty rounds count."""
_PRIOR_TOKENS = 4.0
"""How many judged tokens the prior is worth."""


@dataclass(slots=True)
class AcceptanceEstimate:
    """Of one source of draft tokens: the chance that a token is accepted if those before it in its window were.

    Decayed counts of the tokens that were accepted and of those that were rejected, which are bounded therefore, and a
    prior that counts as a few tokens.
    """

    num_accepted: float = 0.0
    num_rejected: float = 0.0

    def add(self, num_accepted: int, *, was_rejected: bool) -> None:
        """A window was judged.

        Args:
            num_accepted: tokens accepted.
            was_rejected: the one behind them was not; False if there was none, or if it was not judged.
        """
        self.fade()
        self.num_accepted += num_accepted
        self.num_rejected += was_rejected

    def fade(self) -> None:
        """A round went by without a window of this source: what was seen counts less."""
        self.num_accepted *= _FADING
        self.num_rejected *= _FADING

    def rate(self, prior: float) -> float:
        """The chance.

        Args:
            prior: what it is taken for before anything has been seen.
        """
        return (self.num_accepted + _PRIOR_TOKENS * prior) / (self.num_accepted + self.num_rejected + _PRIOR_TOKENS)


def expected_accepted(rate: float, num_draft_tokens: int) -> float:
    """Mean number of accepted tokens of a window if each is accepted with the same chance once those before it are."""
    return sum(rate**length for length in range(1, num_draft_tokens + 1))

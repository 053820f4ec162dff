"""What may become of a window, the likeliest first."""

from __future__ import annotations

from typing import NamedTuple

MOST_RANKS = 3
"""Next tokens that are considered for one number of accepted tokens."""
_LONG_SHOT = 0.01
"""Outcomes less likely than this are not worth a row."""


class Outcome(NamedTuple):
    """A number of accepted tokens, and which token of the target's own follows them."""

    num_accepted: int
    rank: int
    """0: the one that the draft thinks likeliest; behind a rejection, of those that were not drafted."""


def likeliest_outcomes(
    num_draft_tokens: int, acceptance: float, second_choice: float, max_count: int
) -> list[tuple[Outcome, float]]:
    """Outcomes and their probabilities, in decreasing order.

    Args:
        num_draft_tokens: of the window, at least 1.
        acceptance: probability that the draft's first choice is right.
        second_choice: probability that its next choice is right where those before were wrong.
        max_count: most outcomes.
    """
    found = []
    survival = 1.0
    for num_accepted in range(num_draft_tokens + 1):
        # Behind a window that was accepted to its end the first choice is still to be tried.
        left = survival if num_accepted == num_draft_tokens else survival * (1.0 - acceptance)
        for rank in range(MOST_RANKS):
            rate = acceptance if num_accepted == num_draft_tokens and rank == 0 else second_choice
            found.append((Outcome(num_accepted, rank), left * rate))
            left *= 1.0 - rate
        survival *= acceptance
    found.sort(key=lambda each: -each[1])
    return [each for each in found[:max_count] if each[1] >= _LONG_SHOT]

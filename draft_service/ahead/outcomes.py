"""What may become of a window, the likeliest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draft_service.ahead.pass_times import PassTimes

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


def num_worthwhile(
    probabilities: Sequence[float], num_tokens: int, num_missing: int, seconds: float, times: PassTimes
) -> int:
    """How many of the likeliest outcomes to draft ahead for: what saves most time until the next proposal.

    More of them are hit more often, but make a pass longer, so that fewer tokens are there in time. A pass that is not
    over when the verdict comes is waited for.

    Args:
        probabilities: of the outcomes, in decreasing order.
        num_tokens: of a continuation.
        num_missing: rows that the first pass has besides.
        seconds: until the verdict.
        times: of passes.
    """
    best, most_saved, hit_rate = 0, 0.0, 0.0
    seconds -= num_missing * times.seconds_per_row
    for count, probability in enumerate(probabilities, 1):
        hit_rate += probability
        step = times.seconds(count)
        is_done = num_tokens * step <= max(0.0, seconds)
        num_made = num_tokens if is_done else max(0, int(seconds / step))
        # On average half a pass is left.
        saved = hit_rate * num_made * times.seconds(1) - (0.0 if is_done else step / 2)
        if saved > most_saved or not step:  # Of which nothing is known yet.
            best, most_saved = count, saved
    return best

"""Which window is best for requests of known acceptance, at known costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from orchestrator.round_costs import PredictedRounds

_WORTH_A_CHANGE = 1.02
"""Another K must promise so much more than the present one; estimates that are nearly equal must not make K swing."""
_HOPELESS = 0.01
"""Windows are not made longer than this probability of being accepted to the end."""
_MOST_BRANCHING_STEPS = 4
"""A window of more steps has no runners-up: then the chain is what brings most."""


class WindowShape(NamedTuple):
    """Of a window: steps of drafting, and runners-up of these steps."""

    num_steps: int
    num_others: int

    @property
    def num_draft_tokens(self) -> int:
        """Of both kinds."""
        return self.num_steps + self.num_others


NO_WINDOW = WindowShape(0, 0)
"""Plain decoding."""


def best_shape(
    predicted: PredictedRounds,
    rates: Sequence[float],
    gains: Sequence[float],
    current: WindowShape | None,
    *,
    least_gain: float = 1.0,
) -> WindowShape:
    """The shape with most tokens a second; the present one unless another is clearly better.

    Args:
        predicted: what rounds take.
        rates: conditional acceptance of position 0, 1, ..., as many as a window may have.
        gains: tokens that the first, second, ... runner-up adds to a round; none if windows are chains.
        current: the present shape; None: there is none.
        least_gain: how many times as fast as without draft tokens a shape with some must be.
    """
    best, best_pace, current_pace = NO_WINDOW, 0.0, 0.0
    # As far as it is looked at: long windows seldom are.
    for num_steps, tokens in enumerate(expected_tokens(rates)):
        room = len(rates) - num_steps if 0 < num_steps <= _MOST_BRANCHING_STEPS else 0
        most = tokens + sum(gains[:room])
        for num_others, more in enumerate(itertools.accumulate(gains[:room], initial=0.0)):
            seconds = predicted.seconds(num_steps, num_steps + num_others)
            pace = (tokens + more) / seconds
            if not num_steps:
                pace *= least_gain
            if pace > best_pace:
                best, best_pace = WindowShape(num_steps, num_others), pace
            if current is not None and current.num_steps == num_steps and current.num_others == num_others:
                current_pace = pace
            elif most < best_pace * seconds and (current is None or current.num_steps != num_steps):
                # A larger window takes no less, so that none with as many steps is the best.
                break
    return current if current is not None and best_pace < _WORTH_A_CHANGE * current_pace else best


def expected_tokens(rates: Sequence[float]) -> Iterator[float]:
    """Tokens of a round for 0, 1, ... steps of drafting, as long as a window may well be accepted to the end.

    Args:
        rates: conditional acceptance of position 0, 1, ...
    """
    survival, tokens = 1.0, 0.0
    for rate in [1.0, *rates]:
        survival *= rate
        if survival < _HOPELESS:
            return
        tokens += survival
        yield tokens

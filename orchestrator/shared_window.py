"""How many draft tokens all requests that share a target should have in the same round."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from orchestrator.acceptance import AcceptanceByPosition
from orchestrator.round_costs import RoundCosts
from orchestrator.rounds import Round
from orchestrator.window_shape import NO_WINDOW, WindowShape, best_shape

_DECAY = 0.995
_HOPE = 0.6
_FEW = 4
_LEAST_GAIN, _GAIN_EACH, _MOST_GAIN = 0.05, 0.0067, 0.08
"""Windows must promise so much more than none, and so much for each request beyond a few, but no more than that. Groups
are not quite of one size, and prompts and longer windows of lookup come between, so the rounds of several with drafts
take longer than their parts."""
_FADE = 0.5
"""What is left of evidence when drafts are tried again: the text may be another one since."""
_FIRST_PAUSE = 8
_LONGEST_PAUSE = 128
"""Turns without drafts before they are tried again; each attempt in vain doubles the pause."""
_TRIED_BY = 8
"""While there are none, one request of so many begins with them all the same: by those they are tried."""


class SharedWindow:
    """The shape of windows for all requests, turn by turn.

    Sequences that are verified together save what a pass costs whatever is in it. One that drafts while the others do
    not is late for their pass: they wait for it, or it has one for itself. So what is best for one depends on what the
    others do, and trying something alone is dear and tells nothing. All do the same in a turn, trials included, which
    are one turn long: each request chooses once in a turn, and the first one that comes back begins the next.

    Args:
        costs: of rounds.
    """

    def __init__(self, costs: RoundCosts) -> None:
        self._costs = costs
        self._acceptance = AcceptanceByPosition(_DECAY)
        self.turn = 0
        """Number of the present turn."""
        self._shape: WindowShape | None = None
        """Of this turn; None: no turn has begun."""
        self.is_trial = False
        """Whether this turn has drafts although they do not seem to pay."""
        self._usual: WindowShape | None = None
        """The same, trials left out."""
        self._num_alike, self.is_trial = 0, True
        self._pause = _FIRST_PAUSE
        self._num_begun = 0
        """Requests that began while there were none."""

    def begins_with_drafts(self) -> bool:
        """Whether the draft service had better read the prompt of a request that begins now.

        Not while nobody drafts and trials have confirmed it: reading takes its time from those who do, and from the
        orchestrator where both have the same processor.
        """
        if self._usual != NO_WINDOW or self._pause == _FIRST_PAUSE:
            return True
        self._num_begun += 1
        return self._num_begun % _TRIED_BY == 1

    def observe(self, done: Round) -> None:
        """A round of any request with draft tokens of a model was committed."""
        self._acceptance.observe(done.num_steps, done.num_accepted_steps)

    def went_without(self) -> None:
        """A request had no drafts while others had some; it counts as if its own had been rejected.

        Its round took as long as theirs: while the draft service read its prompt, or because its drafts are no good.
        """
        self._acceptance.observe(1, 0)

    def rates(self, count: int) -> list[float]:
        """Acceptance of the first `count` positions."""
        return self._acceptance.rates([_HOPE] * count, 1.0)

    def choose(self, turn: int, limit: int, gains: Sequence[float]) -> WindowShape:
        """For a request's next round.

        Args:
            turn: the turn that the request has chosen in last; `self.turn` of now is the one of this choice.
            limit: most draft tokens.
            gains: tokens that the first, second, ... runner-up adds to a round; none if windows are chains.
        """
        if self._shape is None or turn == self.turn:
            self.turn += 1
            self._shape = self._next(limit, gains)
        return self._shape

    def least_survival(self, shape: WindowShape) -> float:
        """Probability of being accepted that a draft token needs to be worth its row, while others draft anyway."""
        predicted = self._costs.predicted(by_lookup=False)
        tokens = 1.0 + sum(itertools.accumulate(self.rates(shape.num_steps), lambda one, other: one * other))
        row_seconds = predicted.row_seconds(shape.num_draft_tokens)
        return tokens * row_seconds / predicted.seconds(shape.num_steps, shape.num_draft_tokens)

    def _next(self, limit: int, gains: Sequence[float]) -> WindowShape:
        before, self.is_trial = self._usual, False
        predicted = self._costs.predicted(by_lookup=False)
        least_gain = 1.0 + min(_MOST_GAIN, _LEAST_GAIN + _GAIN_EACH * max(0.0, self._costs.num_sequences - _FEW))
        self._usual = best_shape(predicted, self.rates(limit), gains, before, least_gain=least_gain)
        is_alike = before is not None and (before == NO_WINDOW) == (self._usual == NO_WINDOW)
        self._num_alike = self._num_alike + 1 if is_alike else 1
        if self._num_alike < self._pause:
            return self._usual
        if self._usual != NO_WINDOW:
            self._pause = _FIRST_PAUSE
            return self._usual
        self._num_alike, self.is_trial = 0, True
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._acceptance.fade(_FADE)
        return WindowShape(min(1, limit), 0)

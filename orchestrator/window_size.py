"""How many draft tokens the next round should have (K)."""

from __future__ import annotations

from typing import Protocol

from orchestrator.acceptance import AcceptanceByPosition
from orchestrator.catch_up import CatchUp
from orchestrator.drafted import EMPTY, PREFILL
from orchestrator.round_costs import RoundCosts
from orchestrator.rounds import Round
from orchestrator.shared_window import SharedWindow
from orchestrator.window_shape import NO_WINDOW, WindowShape, best_shape
from orchestrator.window_sizes import NO_TOKENS, WindowSizes
from specdec.v1 import model_pb2

_REQUEST_DECAY = 0.96
_SHARED_DECAY = 0.998
_SHARED_WEIGHT = 6.0
"""Windows of its own after which a request counts as much as all others."""
_HOPE = 0.6
"""Acceptance that every request begins with at least: a few windows in vain cost less than never to draft again."""
_NO_ACCIDENT = 1e-3
"""When windows in a row were all rejected, and that would have had no more than this probability, the text has changed:
what came before them no longer counts."""
_MOST_IN_VAIN = 9
"""After so many windows in a row that brought nothing there are none for a while, however little they cost."""
_FIRST_PAUSE = 8
_LONGEST_PAUSE = 64
"""Rounds without drafts before they are tried again; each attempt in vain doubles the pause."""
_SEVERAL = 1.5
"""From so many running requests on, as an average, all do the same."""
_CLEARLY = 0.7
"""A draft token is left out of a window that others have, too, where it is worth less than this part of its row."""
_FIRST_CHOICE = 4
"""K before any time was measured."""
_LOOKUP_HOPE = 1.0
_LOOKUP_RATE = 0.1
"""Weight of one round in what asking for lookup brings."""
_LOOKUP_TURNS = 16
"""Where it brings too little, it is asked for once in so many rounds."""
_MOST_ASKING = 4
"""Where more requests run, who asks for lookup alone misses the pass that the others share, or makes it wait: that
costs more than is found (docs/experiments.md)."""
_RUNNERS_UP = (0.13, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01)
"""Shares of rounds in which the first, second, ... runner-up is accepted, before any was measured."""
_RUNNERS_UP_WEIGHT = 20.0
"""Windows that these are worth."""


class WindowSize(Protocol):
    """Chooses K for one request, round by round."""

    def begins_with_drafts(self) -> bool:
        """Whether the draft service is to read the prompt now, or not before drafts are wanted; asked once, first."""

    def choose(self) -> WindowSizes:
        """Draft tokens that the next round should have. Never looks at what they will be."""

    def observe(self, done: Round) -> None:
        """A round was committed. The prefill is not a round."""


class FixedWindowSize:
    """Always the same K."""

    def __init__(self, num_draft_tokens: int) -> None:
        self.num_draft_tokens = num_draft_tokens

    def begins_with_drafts(self) -> bool:
        """See `WindowSize`."""
        return True

    def choose(self) -> WindowSizes:
        """See `WindowSize`."""
        return WindowSizes(self.num_draft_tokens, self.num_draft_tokens)

    def observe(self, done: Round) -> None:
        """See `WindowSize`."""


NO_DRAFTS: WindowSize = FixedWindowSize(0)
"""Plain decoding."""


class SharedExperience:
    """What the rounds of all requests have taught: costs, and acceptance for a request that has none of its own yet."""

    def __init__(self, costs: RoundCosts | None = None) -> None:
        self.costs = costs or RoundCosts()
        self.catch_up = CatchUp(self.costs.plain_seconds)
        self.shared: SharedWindow | None = SharedWindow(self.costs)
        """What all requests do while several run; None: these must not follow others."""
        self._acceptance = {by_lookup: AcceptanceByPosition(_SHARED_DECAY) for by_lookup in (False, True)}
        self._runners_up = [(share * _RUNNERS_UP_WEIGHT, _RUNNERS_UP_WEIGHT) for share in _RUNNERS_UP]
        self.sources: set[bool] = set()
        """What has made windows: False for a draft model, True for lookup."""

    def costs_only(self) -> SharedExperience:
        """The same costs, and no acceptance of other requests.

        By the rejection and block rules a request with the seed of an earlier one meets the same random numbers. If its
        windows depended on how those had fallen, its text would no longer follow the target's law.
        """
        experience = SharedExperience(self.costs)
        experience.shared = None
        return experience

    def announce(self, model_info: model_pb2.ModelInfo) -> None:
        """Take in what a target says of itself."""
        self.costs.announce(model_info)

    def observe(self, done: Round) -> None:
        """Take in a round of any request."""
        self.costs.observe(done)
        if done.num_draft_tokens:
            self.sources.add(done.is_by_lookup)
            self._acceptance[done.is_by_lookup].observe(done.num_steps, done.num_accepted_steps)
            if self.shared is not None and not done.is_by_lookup:
                self.shared.observe(done)
            for place in range(min(done.num_draft_tokens - done.num_steps, len(self._runners_up))):
                accepted, windows = self._runners_up[place]
                is_accepted = place == done.accepted_runner_up
                self._runners_up[place] = (_SHARED_DECAY * accepted + is_accepted, _SHARED_DECAY * windows + 1.0)

    def gains(self, count: int) -> list[float]:
        """Tokens that the first, second, ... runner-up adds to a round, of at most `count`."""
        return [accepted / windows for accepted, windows in self._runners_up[:count]]

    def rates(self, count: int, *, by_lookup: bool) -> list[float]:
        """Acceptance of the first `count` positions that a new request may hope for, never too little to try."""
        return [max(rate, _HOPE) for rate in self._acceptance[by_lookup].rates([_HOPE] * count, 1.0)]


class MeasuredWindowSize:
    """The K with most tokens a second, by measured acceptance and measured times; 0 included.

    One for windows that a draft model makes, and one for what lookup finds: neither says anything of the other, and
    only the model takes time for each token.

    Args:
        limit: the largest K.
        experience: of all requests.
        has_model: whether the drafter has a model at all.
        branches: whether a window may be a tree.
    """

    def __init__(
        self, limit: int, experience: SharedExperience, *, has_model: bool = True, branches: bool = False
    ) -> None:
        self._experience = experience
        self._has_model = has_model
        self._began_with_drafts = True
        self._model = _SourceWindowSize(limit, experience, by_lookup=False, branches=branches)
        self._lookup = _SourceWindowSize(limit, experience, by_lookup=True, branches=False)
        self._is_lookup_asked_alone = False
        self._lookup_gain = _LOOKUP_HOPE
        """Tokens that asking for lookup alone adds to a round, those where nothing is found included."""
        self._num_rounds = 0

    def begins_with_drafts(self) -> bool:
        """See `WindowSize`. Not among others who do without, but for a few by whom drafts are tried."""
        shared = self._experience.shared
        if not self._has_model or shared is None or self._experience.costs.num_sequences < _SEVERAL:
            return True
        self._began_with_drafts = self._model.has_drafter = shared.begins_with_drafts()
        return self._began_with_drafts

    def choose(self) -> WindowSizes:
        """See `WindowSize`."""
        shape = self._model.choose() if self._has_model else NO_WINDOW
        model = shape.num_draft_tokens
        self._num_rounds += 1
        self._is_lookup_asked_alone = not model and self._is_lookup_worth_asking()
        if not model and not self._is_lookup_asked_alone:
            return NO_TOKENS
        if not model and self._experience.sources == {False}:
            # Nobody looks anything up here, as far as has been seen.
            return NO_TOKENS
        lookup = self._lookup.choose().num_steps
        return WindowSizes(model, max(model, lookup), shape.num_steps if shape.num_others else 0)

    def observe(self, done: Round) -> None:
        """See `WindowSize`."""
        self._experience.observe(done)
        shared = self._experience.shared
        if shared is not None and self._began_with_drafts and done.drafted.fallback_cause in (PREFILL, EMPTY):
            # Not of one that is opened in mid-request, with the others: that is once, and not what is to be expected.
            shared.went_without()
        if self._is_lookup_asked_alone and done.drafted.timings is not None:
            self._lookup_gain += _LOOKUP_RATE * (done.num_accepted_tokens - self._lookup_gain)
        if done.num_draft_tokens:
            (self._lookup if done.is_by_lookup else self._model).observe(done)

    def _is_lookup_worth_asking(self) -> bool:
        """Whether what it finds is worth the way to the draft service and back, which every round takes."""
        costs, shared = self._experience.costs, self._experience.shared
        # Who asks comes a little later, so that all had better do so at once.
        is_with_others = self._has_model and shared is not None and costs.num_sequences >= _SEVERAL
        if is_with_others and (costs.num_sequences > _MOST_ASKING or not self._model.has_drafter):
            # To open the sequence in mid-request for it, with the features of all tokens, costs more still.
            return False
        turn = shared.turn if shared is not None and is_with_others else self._num_rounds
        return turn % _LOOKUP_TURNS == 0 or self._lookup_gain >= costs.asking_share()


class _SourceWindowSize:
    """K for windows of one kind of source.

    A round with K draft tokens commits 1 + s(1) + ... + s(K) tokens, where s(i) is the probability that the first i of
    them are accepted, and takes `RoundCosts.seconds(K)`. While drafts do not pay there are none. After a pause
    the request begins again with the hope of a new one; that ends after a few windows if it was in vain.
    """

    def __init__(self, limit: int, experience: SharedExperience, *, by_lookup: bool, branches: bool) -> None:
        self._limit = limit
        self._experience = experience
        self._by_lookup = by_lookup
        self._branches = branches
        self._acceptance = AcceptanceByPosition(_REQUEST_DECAY)
        self._in_vain: list[int] = []
        """Sizes of the last windows in a row of which nothing was accepted."""
        self._num_wasted = 0
        """Windows in a row that brought nothing."""
        self._rate_before = _HOPE
        """Acceptance of the first position when they began."""
        self._pause = _FIRST_PAUSE
        self._num_alike = 0
        self._is_due = False
        """Drafts are to be tried again whatever is thought of them: what they cost may have changed, too."""
        self._current: WindowShape | None = None
        self._turn = 0
        """The last one that it chose in with all others."""
        self._num_declined = 0
        self.has_drafter = True
        """Whether the draft service has the sequence, as far as it depends on what is chosen here."""

    def choose(self) -> WindowShape:
        """For the next round."""
        costs, shared = self._experience.costs, self._experience.shared
        is_alone = costs.num_sequences < _SEVERAL or not costs.are_known(by_lookup=False)
        shape = self._choose_alone() if self._by_lookup or shared is None or is_alone else self._choose_with(shared)
        self.has_drafter |= shape.num_steps > 0
        return shape

    def _choose_with(self, shared: SharedWindow) -> WindowShape:
        """As all others, but for draft tokens that this request's text makes worthless."""
        gains = self._experience.gains(self._limit) if self._branches else ()
        shape = shared.choose(self._turn, self._limit, gains)
        self._turn = shared.turn
        if shared.is_trial and not self.has_drafter:
            # A model that has to run all of the text first is too late for one turn.
            shape = NO_WINDOW
        if not self._branches:
            shape = WindowShape(shape.num_steps, 0)
        if shape.num_steps and not shared.is_trial:
            shape = self._worthwhile(shape, shared)
        self._current = shape
        return shape

    def _worthwhile(self, shape: WindowShape, shared: SharedWindow) -> WindowShape:
        least = _CLEARLY * shared.least_survival(shape)
        survival, num_steps = 1.0, 0
        for rate in self._acceptance.rates(shared.rates(shape.num_steps), _SHARED_WEIGHT):
            survival *= rate
            if survival < least:
                break
            num_steps += 1
        if num_steps:
            self._num_declined = 0
            return WindowShape(num_steps, shape.num_others)
        shared.went_without()
        self._num_declined += 1
        if self._num_declined >= self._pause:
            self._num_declined = 0
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._acceptance = AcceptanceByPosition(_REQUEST_DECAY)
        return NO_WINDOW

    def _choose_alone(self) -> WindowShape:
        before, self._current = self._current, self._best()
        if self._is_due and not self._current.num_steps:
            self._current = WindowShape(min(1, self._limit), 0)
        self._is_due = False
        is_alike = (before is not None and before.num_steps > 0) == (self._current.num_steps > 0)
        self._num_alike = self._num_alike + 1 if is_alike else 1
        if self._num_alike == self._pause:
            if self._current.num_steps:
                self._pause = _FIRST_PAUSE
            else:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                self._acceptance = AcceptanceByPosition(_REQUEST_DECAY)
                self._num_wasted = 0
                self._is_due = True
        return self._current

    def observe(self, done: Round) -> None:
        """A window from this source was judged."""
        num_steps, num_accepted = done.num_steps, done.num_accepted_steps
        # A window that was ready before it was asked for hid something, whatever became of it.
        is_wasted = not done.num_accepted_tokens and done.ahead_outcome != "hit"
        self._num_wasted = self._num_wasted + 1 if is_wasted else 0
        if num_accepted:
            self._in_vain.clear()
            self._rate_before = self._rates()[0]
        else:
            self._in_vain.append(num_steps)
            if (1.0 - self._rate_before) ** len(self._in_vain) < _NO_ACCIDENT:
                self._acceptance = AcceptanceByPosition(_REQUEST_DECAY)
                for size in self._in_vain[:-1]:
                    self._acceptance.observe(size, 0)
        self._acceptance.observe(num_steps, num_accepted)

    def _best(self) -> WindowShape:
        """By what is known now; the present shape unless another is clearly better."""
        costs = self._experience.costs
        if not costs.are_known(by_lookup=self._by_lookup):
            return WindowShape(min(_FIRST_CHOICE, self._limit), 0)
        if self._num_wasted >= _MOST_IN_VAIN:
            return NO_WINDOW
        gains = self._experience.gains(self._limit) if self._branches else ()
        rates = self._rates()[: self._limit]
        return best_shape(costs.predicted(by_lookup=self._by_lookup), rates, gains, self._current)

    def _rates(self) -> list[float]:
        return self._acceptance.rates(self._experience.rates(self._limit, by_lookup=self._by_lookup), _SHARED_WEIGHT)

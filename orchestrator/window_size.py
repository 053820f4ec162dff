"""How many draft tokens the next round should have (K)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from orchestrator.acceptance import AcceptanceByPosition
from orchestrator.round_costs import RoundCosts
from orchestrator.rounds import Round
from orchestrator.window_sizes import NO_TOKENS, WindowSizes
from specdec.v1 import model_pb2

_REQUEST_DECAY = 0.96
_SHARED_DECAY = 0.998
_SHARED_WEIGHT = 6.0
"""Windows of its own after which a request counts as much as all others."""
_WORTH_A_CHANGE = 1.02
"""Another K must promise so much more than the present one; estimates that are nearly equal must not make K swing."""
_HOPE = 0.6
"""Acceptance that every request begins with at least: a few windows in vain cost less than never to draft again."""
_NO_ACCIDENT = 1e-3
"""When windows in a row were all rejected, and that would have had no more than this probability, the text has changed:
what came before them no longer counts."""
_FIRST_PAUSE = 8
_LONGEST_PAUSE = 64
"""Rounds without drafts before they are tried again; each attempt in vain doubles the pause."""
_FIRST_CHOICE = 4
"""K before any time was measured."""
_HOPELESS = 0.01
"""Windows are not made longer than this probability of being accepted to the end."""


class WindowSize(Protocol):
    """Chooses K for one request, round by round."""

    def choose(self) -> WindowSizes:
        """Draft tokens that the next round should have. Never looks at what they will be."""

    def observe(self, done: Round) -> None:
        """A round was committed. The prefill is not a round."""


class FixedWindowSize:
    """Always the same K."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def choose(self) -> WindowSizes:
        """See `WindowSize`."""
        return WindowSizes(self._num_draft_tokens, self._num_draft_tokens)

    def observe(self, done: Round) -> None:
        """See `WindowSize`."""


NO_DRAFTS: WindowSize = FixedWindowSize(0)
"""Plain decoding."""


class SharedExperience:
    """What the rounds of all requests have taught: costs, and acceptance for a request that has none of its own yet."""

    def __init__(self, costs: RoundCosts | None = None) -> None:
        self.costs = costs or RoundCosts()
        self._acceptance = {by_lookup: AcceptanceByPosition(_SHARED_DECAY) for by_lookup in (False, True)}
        self.sources: set[bool] = set()
        """What has made windows: False for a draft model, True for lookup."""

    def costs_only(self) -> SharedExperience:
        """The same costs, and no acceptance of other requests.

        By the rejection and block rules a request with the seed of an earlier one meets the same random numbers. If its
        windows depended on how those had fallen, its text would no longer follow the target's law.
        """
        return SharedExperience(self.costs)

    def announce(self, model_info: model_pb2.ModelInfo) -> None:
        """Take in what a target says of itself."""
        self.costs.announce(model_info)

    def observe(self, done: Round) -> None:
        """Take in a round of any request."""
        self.costs.observe(done)
        if done.num_draft_tokens:
            self.sources.add(done.is_by_lookup)
            self._acceptance[done.is_by_lookup].observe(done.num_draft_tokens, done.num_accepted_tokens)

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
    """

    def __init__(self, limit: int, experience: SharedExperience, *, has_model: bool = True) -> None:
        self._experience = experience
        self._has_model = has_model
        self._model = _SourceWindowSize(limit, experience, by_lookup=False)
        self._lookup = _SourceWindowSize(limit, experience, by_lookup=True)

    def choose(self) -> WindowSizes:
        """See `WindowSize`."""
        model, lookup = self._model.choose() if self._has_model else 0, self._lookup.choose()
        if not model and self._experience.sources == {False}:
            # Nobody looks anything up here, as far as has been seen.
            return NO_TOKENS
        return WindowSizes(model, max(model, lookup))

    def observe(self, done: Round) -> None:
        """See `WindowSize`."""
        self._experience.observe(done)
        if done.num_draft_tokens:
            (self._lookup if done.is_by_lookup else self._model).observe(done)


class _SourceWindowSize:
    """K for windows of one kind of source.

    A round with K draft tokens commits 1 + s(1) + ... + s(K) tokens, where s(i) is the probability that the first i of
    them are accepted, and takes `RoundCosts.seconds(K)`. While drafts do not pay there are none. After a pause
    the request begins again with the hope of a new one; that ends after a few windows if it was in vain.
    """

    def __init__(self, limit: int, experience: SharedExperience, *, by_lookup: bool) -> None:
        self._limit = limit
        self._experience = experience
        self._by_lookup = by_lookup
        self._acceptance = AcceptanceByPosition(_REQUEST_DECAY)
        self._in_vain: list[int] = []
        """Sizes of the last windows in a row of which nothing was accepted."""
        self._rate_before = _HOPE
        """Acceptance of the first position when they began."""
        self._pause = _FIRST_PAUSE
        self._num_alike = 0
        self._current: int | None = None

    def choose(self) -> int:
        """For the next round."""
        before, self._current = self._current, self._best()
        self._num_alike = self._num_alike + 1 if bool(before) == bool(self._current) else 1
        if self._num_alike == self._pause:
            if self._current:
                self._pause = _FIRST_PAUSE
            else:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                self._acceptance = AcceptanceByPosition(_REQUEST_DECAY)
        return self._current

    def observe(self, done: Round) -> None:
        """A window from this source was judged."""
        num_draft_tokens, num_accepted = done.num_draft_tokens, done.num_accepted_tokens
        if num_accepted:
            self._in_vain.clear()
            self._rate_before = self._rates()[0]
        else:
            self._in_vain.append(num_draft_tokens)
            if (1.0 - self._rate_before) ** len(self._in_vain) < _NO_ACCIDENT:
                self._acceptance = AcceptanceByPosition(_REQUEST_DECAY)
                for size in self._in_vain[:-1]:
                    self._acceptance.observe(size, 0)
        self._acceptance.observe(num_draft_tokens, num_accepted)

    def _best(self) -> int:
        """By what is known now; the present K unless another is clearly better."""
        costs = self._experience.costs
        if not costs.are_known(by_lookup=self._by_lookup):
            return min(_FIRST_CHOICE, self._limit)
        rates = self._rates()
        seconds = (costs.seconds(count, by_lookup=self._by_lookup) for count in range(self._limit + 1))
        paces = list(tokens_per_second(rates, seconds))
        best = max(range(len(paces)), key=paces.__getitem__)
        current = self._current
        if current is not None and current < len(paces) and paces[best] < _WORTH_A_CHANGE * paces[current]:
            return current
        return best

    def _rates(self) -> list[float]:
        return self._acceptance.rates(self._experience.rates(self._limit, by_lookup=self._by_lookup), _SHARED_WEIGHT)


def tokens_per_second(rates: Sequence[float], seconds: Iterable[float]) -> Iterator[float]:
    """Tokens a second for K = 0, 1, ..., as long as a window has a chance of being accepted to the end.

    Args:
        rates: conditional acceptance of position 0, 1, ...
        seconds: duration of a round with 0, 1, ... draft tokens; one entry more than `rates`.
    """
    survival, tokens = 1.0, 0.0
    for rate, duration in zip([1.0, *rates], seconds, strict=True):
        survival *= rate
        if survival < _HOPELESS:
            return
        tokens += survival
        yield tokens / duration

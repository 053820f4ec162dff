"""Lookup by the longest match: how the end of a text went on where it stood before.

Oliaro et al. 2024, "SuffixDecoding", has the idea of matching at any length, in the request and in past outputs, and of
trusting a longer match with a longer draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draft_service.drafters.suffix_automaton import SuffixAutomaton
from draft_service.drafters.tenant_memory import TenantMemory
from draft_service.sequence import DraftSequence
from specdec.v1 import draft_pb2

_MAX_READ_TOKENS = 1024
"""Tokens of a sequence that are taken in at a time, so that a long prompt does not hold up the others: about 5 ms."""
_MAX_RESUMED_TOKENS = 64
"""From so far back the match in a memory is looked for again when the memory has grown."""
_DOUBT = 2.0


@dataclass(frozen=True, slots=True)
class Found:
    """A continuation that lookup has to offer."""

    token_ids: Sequence[int]
    match_length: int
    """Tokens at the end of the text that were found before what is offered."""
    confidence: float
    """A rough chance that the first token is right: `times * match_length / (of * match_length + 2)`, where it came
    `times` of the `of` times that something came behind the match. Measured on Spec-Bench, see docs/experiments.md."""
    source: draft_pb2.DraftSource.ValueType


NOTHING_FOUND = Found((), 0, 0.0, draft_pb2.DRAFT_SOURCE_UNSPECIFIED)


class SuffixLookup:
    """Finds continuations for many sequences: in their own tokens, and in past outputs of their tenant.

    In each the longest match counts. A draft is what came most often behind it, and so on token by token, the latest of
    equals. It has up to `tokens_per_match` tokens for each token of the match, rounded down: what stood before only
    behind the same two tokens is no reason to guess far ahead.

    A tenant's memory is read only if the sequence may follow others; see `DraftSequence.may_follow_others`.

    Args:
        memory: past outputs.
        min_match_length: shortest match, in tokens, that is trusted.
        tokens_per_match: draft tokens trusted for each token of the match.
    """

    def __init__(self, memory: TenantMemory, *, min_match_length: int, tokens_per_match: float) -> None:
        self._memory = memory
        self._min_match_length = min_match_length
        self._tokens_per_match = tokens_per_match
        self._states: dict[int, _State] = {}

    def open(self, sequence: DraftSequence) -> None:
        """See `Drafter`."""
        # What a sequence had written before it was opened again has been kept when that epoch ended.
        start = len(sequence.token_ids) if sequence.epoch > 1 else sequence.prompt_length
        self._states[id(sequence)] = _State(start)

    def close(self, sequence: DraftSequence) -> None:
        """See `Drafter`. The output stays behind in the tenant's memory."""
        state = self._states.pop(id(sequence), None)
        if state is not None:
            self._memory.keep(sequence.tenant, sequence.token_ids[state.output_start :])

    def read(self, sequence: DraftSequence) -> bool:
        """Take in tokens of a sequence, of a long text some; returns whether all have been."""
        text = self._states[id(sequence)].text
        first = text.num_tokens
        for token in sequence.token_ids[first : first + _MAX_READ_TOKENS]:
            text.append(token)
        return text.num_tokens == len(sequence.token_ids)

    def find(self, sequence: DraftSequence, num_wanted: int) -> list[Found]:
        """What there is to offer, the longest match first, and of equally long ones the request's own.

        Args:
            sequence: has been read.
            num_wanted: most draft tokens.

        Returns:
            At most one from the request's tokens and two from the memory; each has tokens.
        """
        state = self._states[id(sequence)]
        matches = [(_Match(state.text, *state.text.longest_repeat()), draft_pb2.DRAFT_SOURCE_SUFFIX)]
        if sequence.may_follow_others:
            ends = {id(end.text): end for end in state.ends}
            state.ends = [ends.get(id(text)) or _End(text) for text in self._memory.recall(sequence.tenant)]
            matches += [(end.match(sequence.token_ids), draft_pb2.DRAFT_SOURCE_MEMORY) for end in state.ends]
        found = [self._offer(match.with_continuation(), source, num_wanted) for match, source in matches]
        return sorted((offer for offer in found if offer.token_ids), key=lambda offer: -offer.match_length)

    def _offer(self, match: _Match, source: draft_pb2.DraftSource.ValueType, num_wanted: int) -> Found:
        count = min(num_wanted, int(match.length * self._tokens_per_match))
        token_ids = match.continuation(count, self._min_match_length)
        return Found(token_ids, match.length, match.confidence, source)


@dataclass(slots=True)
class _State:
    """Of one sequence."""

    output_start: int
    text: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    ends: list[_End] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Match:
    """A run of a text that another text, or the same one, ends with."""

    text: SuffixAutomaton
    state: int
    length: int

    @property
    def confidence(self) -> float:
        """See `Found`."""
        times, of = self.text.counts(self.state)
        return times * self.length / (of * self.length + _DOUBT)

    def with_continuation(self) -> _Match:
        """The longest suffix of it that something came behind."""
        state, length = self.state, self.length
        while length and self.text.likeliest(state)[1] < 0:
            state, length = self.text.shorter(state)
        return _Match(self.text, state, length)

    def continuation(self, count: int, min_length: int) -> list[int]:
        """Up to `count` tokens, each the likeliest behind the match with those before it.

        Where the text ends, a shorter match goes on: of the text itself that is its own copy. Below `min_length`, none.
        """
        match = self
        token_ids: list[int] = []
        while len(token_ids) < count and match.length >= min_length:
            state, token = self.text.likeliest(match.state)
            token_ids.append(token)
            match = _Match(self.text, state, match.length + 1).with_continuation()
        return token_ids


@dataclass(slots=True)
class _End:
    """How much of the end of a sequence a text in the memory knows."""

    text: SuffixAutomaton
    _state: int = 0
    _length: int = 0
    _num_read: int = 0
    _text_length: int = 0

    def match(self, token_ids: Sequence[int]) -> _Match:
        """The longest match; searched for again from further back if the text has grown, for it may know more now."""
        if self._text_length != self.text.num_tokens:
            self._state = self._length = 0
            self._num_read = max(0, len(token_ids) - _MAX_RESUMED_TOKENS)
            self._text_length = self.text.num_tokens
        for token in token_ids[self._num_read :]:
            self._state, self._length = self.text.step(self._state, self._length, token)
        self._num_read = len(token_ids)
        return _Match(self.text, self._state, self._length)

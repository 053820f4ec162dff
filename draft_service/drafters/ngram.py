"""Prompt lookup: what followed the last n tokens the last time they occurred is likely to follow again.

Saxena 2023, "Prompt lookup decoding". Good where output repeats input: summaries, edits, code, retrieval.
"""

from __future__ import annotations

from collections.abc import Sequence

from draft_service.ahead.offer import Offer
from draft_service.sequence import Draft, DraftSequence
from specdec.sampling.params import ACCEPTANCE_RULES
from specdec.v1 import draft_pb2, model_pb2


class NgramIndex:
    """Where each run of `min_length` to `max_length` tokens was last continued, kept up as tokens come."""

    def __init__(self, min_length: int, max_length: int) -> None:
        self._lengths = range(max_length, min_length - 1, -1)
        self._continuations: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def update(self, token_ids: Sequence[int]) -> None:
        """Index the tokens that are new since the last call; `token_ids` only ever grows."""
        for position in range(self._indexed, len(token_ids)):
            for length in self._lengths:
                if length <= position:
                    self._continuations[tuple(token_ids[position - length : position])] = position
        self._indexed = len(token_ids)

    def propose(self, token_ids: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that followed the longest suffix seen before; empty if there is none."""
        for length in self._lengths:
            if length > len(token_ids):
                continue
            start = self._continuations.get(tuple(token_ids[len(token_ids) - length :]))
            if start is not None:
                proposal: list[int] = []
                for source in range(start, start + count):
                    # Where the source runs into the end of the text, the text goes on with the proposal itself.
                    beyond = source - len(token_ids)
                    proposal.append(token_ids[source] if beyond < 0 else proposal[beyond])
                return proposal
        return []


class NgramDrafter:
    """Prompt lookup over each sequence's own tokens. Needs no model and works with any tokenizer.

    Args:
        min_length: shortest suffix, in tokens, that is trusted.
        max_length: longest suffix searched for; the longest match wins.
        max_num_draft_tokens: advertised.
        max_num_sequences: advertised.
    """

    def __init__(self, *, min_length: int, max_length: int, max_num_draft_tokens: int, max_num_sequences: int) -> None:
        if min_length > max_length:
            raise ValueError(f"min_length {min_length} is above max_length {max_length}")
        self._min_length = min_length
        self._max_length = max_length
        self._indexes: dict[int, NgramIndex] = {}
        self.info = model_pb2.ModelInfo(
            model_id="ngram",
            max_num_draft_tokens=max_num_draft_tokens,
            max_num_sequences=max_num_sequences,
            acceptance_rules=ACCEPTANCE_RULES,
        )

    def open(self, sequence: DraftSequence) -> None:
        """See `Drafter`."""
        self._indexes[id(sequence)] = NgramIndex(self._min_length, self._max_length)

    def commit(self, sequence: DraftSequence, num_accepted: int) -> None:
        """See `Drafter`. The index catches up when it is asked."""

    def close(self, sequence: DraftSequence) -> None:
        """See `Drafter`."""
        self._indexes.pop(id(sequence), None)

    def check(self) -> None:
        """See `Drafter`. There is no model."""

    @property
    def may_work_ahead(self) -> bool:
        """See `Drafter`."""
        return False

    def work_ahead(self) -> bool:
        """See `Drafter`. Lookup takes microseconds: there is nothing to be won."""
        return False

    def candidates(self) -> Sequence[Offer]:
        """See `Drafter`."""
        return ()

    def advance(self, drafts: Sequence[Draft]) -> None:
        """See `Drafter`. Finishes all of them."""
        for draft in drafts:
            index = self._indexes[id(draft.sequence)]
            index.update(draft.sequence.token_ids)
            token_ids = index.propose(draft.sequence.token_ids, draft.num_lookup)
            draft.finish(token_ids, draft_pb2.DRAFT_SOURCE_NGRAM, batch_sequences=len(drafts))

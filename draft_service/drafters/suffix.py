"""Drafts without a model, by the longest match in the request's tokens and in past outputs of its tenant."""

from __future__ import annotations

from collections.abc import Sequence

from draft_service.ahead.offer import Offer
from draft_service.drafters.suffix_lookup import NOTHING_FOUND, SuffixLookup
from draft_service.sequence import Draft, DraftSequence
from specdec.sampling.params import ACCEPTANCE_RULES
from specdec.v1 import model_pb2


class SuffixDrafter:
    """Offers what `SuffixLookup` finds. Works with any tokenizer.

    Args:
        lookup: finds it.
        max_num_draft_tokens: advertised.
        max_num_sequences: advertised.
    """

    def __init__(self, lookup: SuffixLookup, *, max_num_draft_tokens: int, max_num_sequences: int) -> None:
        self._lookup = lookup
        self.info = model_pb2.ModelInfo(
            model_id="suffix",
            max_num_draft_tokens=max_num_draft_tokens,
            max_num_sequences=max_num_sequences,
            acceptance_rules=ACCEPTANCE_RULES,
        )

    def open(self, sequence: DraftSequence) -> None:
        """See `Drafter`."""
        self._lookup.open(sequence)

    def commit(self, sequence: DraftSequence, num_accepted: int) -> None:
        """See `Drafter`. The lookup catches up when it is asked."""

    def close(self, sequence: DraftSequence) -> None:
        """See `Drafter`."""
        self._lookup.close(sequence)

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
        """See `Drafter`. Finishes all but those whose text is too long to be read at once."""
        for draft in drafts:
            if self._lookup.read(draft.sequence):
                found = next(iter(self._lookup.find(draft.sequence, draft.num_lookup)), NOTHING_FOUND)
                draft.finish(found.token_ids, found.source, batch_sequences=len(drafts))

"""A draft model, and lookup where lookup has shown to bring more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.ahead.offer import Offer
from draft_service.drafters.drafter import Drafter
from draft_service.drafters.source_choice import ServiceEstimates, SourceChoice
from draft_service.drafters.suffix_lookup import Found, SuffixLookup
from draft_service.sequence import Draft, DraftSequence
from specdec.v1 import draft_pb2


class CombinedDrafter:
    """Makes each window by lookup or by a model, never by both; `SourceChoice` says which.

    The choice is made before the model is asked, from committed tokens and from what earlier rounds accepted. Whatever
    the model would sample has no part in it, and so the rejection and block rules keep the target's law. By these rules
    a sequence also learns from its own rounds only; see `DraftSequence.may_follow_others`.

    The model does not run in rounds of lookup; its cache lags behind and catches up when it is asked again.

    Args:
        model: the drafter that runs the model; its facts are advertised.
        lookup: the other source.
        model_cost: see `SourceChoice`.
    """

    def __init__(self, model: Drafter, lookup: SuffixLookup, *, model_cost: float) -> None:
        self.info = model.info
        self._model = model
        self._lookup = lookup
        self._model_cost = model_cost
        self._service = ServiceEstimates()
        self._states: dict[int, _State] = {}

    def open(self, sequence: DraftSequence) -> None:
        """See `Drafter`."""
        self._model.open(sequence)
        self._lookup.open(sequence)
        service = self._service if sequence.may_follow_others else ServiceEstimates()
        self._states[id(sequence)] = _State(SourceChoice(service, self._model_cost))

    def commit(self, sequence: DraftSequence, num_accepted: int) -> None:
        """See `Drafter`."""
        self._model.commit(sequence, num_accepted)
        state = self._states[id(sequence)]
        draft, state.draft = state.draft, None
        if draft is None or not draft.is_done:
            return
        asked_model = draft.source == draft_pb2.DRAFT_SOURCE_MODEL
        committed = sequence.token_ids[-(num_accepted + 1) :]
        # Of a tree, the path that was accepted counts, whatever its chain was.
        by_model = [*committed[:num_accepted], *draft.token_ids[num_accepted:]] if asked_model else None
        state.choice.learn(state.found, by_model, draft.max_steps or draft.num_wanted, committed)

    def close(self, sequence: DraftSequence) -> None:
        """See `Drafter`."""
        self._model.close(sequence)
        self._lookup.close(sequence)
        self._states.pop(id(sequence), None)

    def advance(self, drafts: Sequence[Draft]) -> None:
        """See `Drafter`. Finishes what lookup makes; if that is nothing, has the model go on with the others."""
        by_lookup: list[tuple[Draft, Found]] = []
        by_model: list[Draft] = []
        for draft in drafts:
            is_read = self._lookup.read(draft.sequence)
            if not draft.is_asked or draft.source:
                by_model.append(draft)
            elif is_read:
                chosen = self._choose(draft)
                if chosen is None:
                    by_model.append(draft)
                else:
                    by_lookup.append((draft, chosen))
        for draft, chosen in by_lookup:
            draft.finish(chosen.token_ids, chosen.source, batch_sequences=len(by_lookup))
        if by_model and not by_lookup:
            self._model.advance(by_model)

    def check(self) -> None:
        """See `Drafter`."""
        self._model.check()

    @property
    def may_work_ahead(self) -> bool:
        """See `Drafter`."""
        return self._model.may_work_ahead

    def work_ahead(self) -> bool:
        """See `Drafter`. The model's windows only; whether lookup makes the next one is seen when it is asked for."""
        return self._model.work_ahead()

    def candidates(self) -> Sequence[Offer]:
        """See `Drafter`."""
        return self._model.candidates()

    def _choose(self, draft: Draft) -> Found | None:
        """What lookup makes the window of; None: the model makes it."""
        state = self._states[id(draft.sequence)]
        state.draft = draft
        state.found = self._lookup.find(draft.sequence, draft.num_lookup)
        # What the target is judging already is the model's.
        chosen = None if draft.is_candidate else state.choice.choose(state.found, draft.max_steps or draft.num_wanted)
        draft.source = draft_pb2.DRAFT_SOURCE_MODEL if chosen is None else chosen.source
        return chosen


@dataclass(slots=True)
class _State:
    """Of one sequence."""

    choice: SourceChoice
    draft: Draft | None = None
    """Of the last round that was asked for."""
    found: Sequence[Found] = ()
    """What lookup offered for it."""

"""The draft service's engine: drafts for every sequence that asks, batched, and answers as they get ready."""

from __future__ import annotations

import time

from opentelemetry.trace import INVALID_SPAN

from draft_service.drafters.drafter import Drafter
from draft_service.sequence import Draft, DraftSequence, check_ahead
from specdec.draft_source import source_name
from specdec.engine.connection import Connection
from specdec.engine.leases import LEASE_SECONDS
from specdec.engine.sequences import NOBODY_WAITS, SequenceEngine
from specdec.errors import InvalidArgumentError, Refusal
from specdec.telemetry import names
from specdec.telemetry.metrics import EngineMetrics
from specdec.telemetry.tracing import end_span, start_remote_span, timing_attributes
from specdec.v1 import draft_pb2, model_pb2

DraftConnection = Connection[draft_pb2.DraftEvent]


class DraftEngine(SequenceEngine[draft_pb2.DraftCommand, draft_pb2.DraftEvent, DraftSequence]):
    """Proposes tokens for many sequences. Lives on an `EngineThread`; nothing here may be called from elsewhere.

    Args:
        drafter: makes the guesses; its advertised limits are enforced here.
        lease_seconds: how long a sequence may be left alone before it is closed.
    """

    def __init__(self, drafter: Drafter, *, lease_seconds: float = LEASE_SECONDS) -> None:
        super().__init__(draft_pb2.DraftEvent, drafter.info.max_num_sequences, EngineMetrics("draft"), lease_seconds)
        self._drafter = drafter
        self._drafts: dict[tuple[DraftConnection, bytes], Draft] = {}

    def _work(self) -> bool:
        """One batch of drafting, and the proposals that it finished; if there is nothing to draft, a pass ahead.

        Returns whether there may be more to do.
        """
        drafts = list(self._drafts.values())
        # Also if there are none, or the last ones would seem to wait for ever.
        self._metrics.queue_length(len(drafts))
        if not drafts:
            return self._work_ahead()
        started = time.perf_counter()
        self._advance(drafts)
        elapsed = time.perf_counter() - started
        for draft in drafts:
            if self._drafts.get((draft.sequence.connection, draft.sequence.sequence_id)) is not draft:
                continue  # It has failed.
            if draft.batch_sequences and draft.started is None:
                draft.started = started
            if draft.started is not None:
                draft.compute_seconds += elapsed
            if draft.is_done:
                self._answer(draft)
        self._flush()
        return bool(self._drafts) or self._drafter.may_work_ahead

    def _advance(self, drafts: list[Draft]) -> None:
        """Have the drafter go on. If it fails, with one half and then the other, so that only those at fault fail."""
        try:
            self._drafter.advance(drafts)
        except Exception as error:  # noqa: BLE001 - out of memory and whatever else a device may raise
            half = len(drafts) // 2
            for part in (drafts[:half], drafts[half:]) if half else ():
                if unfinished := [draft for draft in part if not draft.is_done]:
                    self._advance(unfinished)
            if not half:
                (draft,) = drafts
                refusal, sequence = self._pass_failed(error), draft.sequence
                self._fail(sequence.connection, sequence.sequence_id, sequence.epoch, draft.round, refusal)
        else:
            self._num_failed_batches = 0

    def _check_model(self) -> None:
        self._drafter.check()

    def _owes(self, connection: DraftConnection, sequence_id: bytes) -> bool:
        return (connection, sequence_id) in self._drafts

    def _work_ahead(self) -> bool:
        """A pass for what nobody has asked for yet. Returns whether there is more."""
        try:
            has_worked = self._drafter.work_ahead()
            self._tell_candidates()
        except Exception as error:  # noqa: BLE001 - as above; here nobody waits, so nobody has to be told
            self._batch_failed(error)
            return False
        if has_worked:
            self._num_failed_batches = 0
        return has_worked

    def _tell_candidates(self) -> None:
        """Send continuations whose outcome is not known yet to those who want them now."""
        for offer in self._drafter.candidates():
            sequence = offer.sequence
            event = draft_pb2.DraftEvent(sequence_id=sequence.sequence_id, epoch=sequence.epoch, round=offer.round)
            event.candidates.base_length = offer.base_length
            for each in offer.branches:
                event.candidates.candidates.add(
                    num_accepted_tokens=each.num_accepted, next_token_id=each.next_token_id, token_ids=each.token_ids
                )
            self._send(sequence.connection, event)
        self._flush()

    def _carry_out(self, connection: DraftConnection, command: draft_pb2.DraftCommand, arrived: float) -> None:
        kind = command.WhichOneof("command")
        if kind == "open":
            self._open(connection, command.sequence_id, command.open, arrived)
        elif kind == "commit":
            self._commit(connection, command.sequence_id, command.commit, arrived)
        elif kind == "features":
            self._take_features(connection, command.sequence_id, command.features, arrived)
        elif kind == "close":
            self._forget(connection, command.sequence_id)
        else:
            raise InvalidArgumentError("a command is neither open, commit, features nor close")

    def _refuse(self, connection: DraftConnection, command: draft_pb2.DraftCommand, refusal: Refusal) -> None:
        kind = command.WhichOneof("command")
        if kind == "features":
            self._fail(connection, command.sequence_id, command.features.epoch, 0, refusal)
            return
        asked = command.open if kind == "open" else command.commit
        self._fail(connection, command.sequence_id, asked.epoch, asked.round, refusal)

    def _open(
        self, connection: DraftConnection, sequence_id: bytes, command: draft_pb2.DraftOpen, arrived: float
    ) -> None:
        if not self._admit(connection, sequence_id, command.epoch):
            return
        self._check_count(command)
        sequence = DraftSequence.from_open(connection, sequence_id, command, self._drafter.info)
        self._keep(connection, sequence_id, sequence)
        self._drafter.open(sequence)
        self._begin(sequence, command, arrived, is_open=True)

    def _commit(
        self, connection: DraftConnection, sequence_id: bytes, commit: draft_pb2.DraftCommit, arrived: float
    ) -> None:
        sequence = self._find(connection, sequence_id, commit.epoch)
        if sequence is None:
            return
        self._check_count(commit)
        check_ahead(commit, sequence, self._drafter.info.max_num_draft_tokens)
        num_accepted = sequence.commit(commit, self._drafter.info.vocab_size)
        self._drafter.commit(sequence, num_accepted)
        # A draft still in the making continues a prefix that is over; the orchestrator did not wait for it.
        unfinished = self._drafts.pop((connection, sequence_id), None)
        if unfinished is not None:
            end_span(unfinished.span, NOBODY_WAITS)
        if commit.num_draft_tokens or commit.num_lookup_tokens:
            draft = self._begin(sequence, commit, arrived, is_open=unfinished is not None and unfinished.is_open)
            draft.drafts_ahead = commit.draft_ahead
            draft.num_ahead_wanted = commit.num_ahead_tokens
            draft.max_candidates = commit.max_candidates
            draft.is_candidate = commit.is_candidate

    def _take_features(
        self, connection: DraftConnection, sequence_id: bytes, command: draft_pb2.DraftFeatures, arrived: float
    ) -> None:
        sequence = self._find(connection, sequence_id, command.epoch)
        if sequence is None:
            return
        sequence.take_features(command.told)
        # What is in the making goes on with them.
        self._drafts.setdefault(
            (connection, sequence_id), Draft(sequence, 0, 0, 0, INVALID_SPAN, arrived, is_open=False, is_early=True)
        )

    def _begin(
        self,
        sequence: DraftSequence,
        command: draft_pb2.DraftOpen | draft_pb2.DraftCommit,
        arrived: float,
        *,
        is_open: bool,
    ) -> Draft:
        span = start_remote_span(
            names.DRAFT_PROPOSE,
            command.trace_context,
            {
                names.ROUND_INDEX: command.round,
                names.ROUND_BASE_LENGTH: len(sequence.token_ids),
                names.SEQUENCE_EPOCH: sequence.epoch,
            },
        )
        draft = Draft(
            sequence,
            command.round,
            command.num_draft_tokens,
            max(command.num_draft_tokens, command.num_lookup_tokens),
            span,
            arrived,
            is_open,
            max_steps=command.max_draft_steps,
        )
        self._drafts[sequence.connection, sequence.sequence_id] = draft
        return draft

    def _check_count(self, command: draft_pb2.DraftOpen | draft_pb2.DraftCommit) -> None:
        limit = self._drafter.info.max_num_draft_tokens
        for name in ("num_draft_tokens", "num_lookup_tokens"):
            count = getattr(command, name)
            if count > limit:
                raise InvalidArgumentError(f"{name} is {count}; at most {limit} are proposed at once")

    def _answer(self, draft: Draft) -> None:
        sequence = draft.sequence
        self._leases.renew((sequence.connection, sequence.sequence_id))
        del self._drafts[sequence.connection, sequence.sequence_id]
        if draft.is_early:
            event = draft_pb2.DraftEvent(sequence_id=sequence.sequence_id, epoch=sequence.epoch)
            event.prefilled.length = draft.num_known
            self._send(sequence.connection, event)
        if not draft.is_asked:
            end_span(draft.span)
            return
        sequence.proposed, sequence.parents = draft.window()
        event = draft_pb2.DraftEvent(sequence_id=sequence.sequence_id, epoch=sequence.epoch, round=draft.round)
        event.proposal.base_length = draft.base_length
        event.proposal.token_ids.extend(sequence.proposed)
        event.proposal.parents.extend(sequence.parents)
        event.proposal.distributions.extend(law.to_proto() for law in draft.laws)
        event.proposal.source = draft.source if draft.token_ids else draft_pb2.DRAFT_SOURCE_UNSPECIFIED
        event.proposal.ahead = draft.ahead
        event.proposal.num_ahead_tokens = draft.num_ahead
        waited = (draft.started if draft.started is not None else time.perf_counter()) - draft.arrived
        event.proposal.timings.CopyFrom(
            model_pb2.Timings(
                queue_microseconds=round(waited * 1e6),
                compute_microseconds=round(draft.compute_seconds * 1e6),
                batch_sequences=draft.batch_sequences,
                batch_rows=draft.batch_rows,
                step_microseconds=round(draft.step_seconds * 1e6),
            )
        )
        self._send(sequence.connection, event)
        if draft.span.is_recording():
            draft.span.set_attributes(
                {names.ROUND_NUM_DRAFT_TOKENS: len(sequence.proposed), **timing_attributes(event.proposal.timings)}
            )
            if draft.token_ids:
                draft.span.set_attribute(names.DRAFT_SOURCE, source_name(draft.source))
        end_span(draft.span)

    def _forget(self, connection: DraftConnection, sequence_id: bytes, reason: BaseException = NOBODY_WAITS) -> None:
        sequence = self._sequences.get(connection, {}).get(sequence_id)
        if sequence is not None:
            self._drafter.close(sequence)
        draft = self._drafts.pop((connection, sequence_id), None)
        if draft is not None:
            end_span(draft.span, reason)
        super()._forget(connection, sequence_id)

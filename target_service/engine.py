"""The target's engine: everything that is ready goes into one forward pass, then every window is judged."""

from __future__ import annotations

import time

import torch

from specdec.engine.connection import Connection
from specdec.engine.gathering import Gathering
from specdec.engine.leases import LEASE_SECONDS
from specdec.engine.memory import CacheMemory
from specdec.engine.schedule import PassRows, Scheduler, Share
from specdec.engine.sequences import NOBODY_WAITS, SequenceEngine, check_prefix, refusal_of
from specdec.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, OutOfRangeError, Refusal
from specdec.forward_costs import ForwardCosts
from specdec.runner.cache import SequenceCache
from specdec.runner.hidden_states import HiddenStates
from specdec.runner.runner import ModelRunner, Work
from specdec.telemetry import names
from specdec.telemetry.metrics import EngineMetrics
from specdec.telemetry.tracing import end_span, span
from specdec.v1 import model_pb2, target_pb2
from target_service.candidate_rounds import CandidateRounds
from target_service.highest import highest_of_rounds
from target_service.judge import DraftWindow
from target_service.sequence import PendingRound, TargetSequence, read_window, span_attributes, start_window_span

TargetConnection = Connection[target_pb2.TargetEvent]

_RUNNING_SECONDS = 1.0
"""A sequence that was answered so long ago is thought to come back with its next window at any moment."""

_MOST_UNREAD = 256
"""Events that wait at a connection from which on features are left out there: they may have 2 MiB each. More than
the verdicts of one pass, which are gone in a moment."""


class TargetEngine(SequenceEngine[target_pb2.TargetCommand, target_pb2.TargetEvent, TargetSequence]):
    """Verifies windows of many sequences. Lives on an `EngineThread`; nothing here may be called from elsewhere.

    Args:
        runner: runs the model.
        info: what the service advertises; its limits are enforced here.
        device: of the model.
        memory: key-value memory; a sequence of the advertised context and a full window must fit.
        max_batch_rows: most rows of one forward pass.
        prefill_chunk_rows: most rows of prefill in a pass beside running sequences; 0: by what passes take.
        hidden_states: the runner's, which features are made of; None: none are given.
        lease_seconds: how long a sequence may be left alone before it is closed.
    """

    def __init__(
        self,
        runner: ModelRunner,
        info: model_pb2.ModelInfo,
        device: torch.device,
        memory: CacheMemory,
        *,
        max_batch_rows: int,
        prefill_chunk_rows: int = 0,
        hidden_states: HiddenStates | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        super().__init__(target_pb2.TargetEvent, info.max_num_sequences, EngineMetrics("target"), lease_seconds)
        self._runner = runner
        self._info = info
        self._device = device
        self._memory = memory
        self._hidden_states = hidden_states
        self._scheduler = Scheduler(max_batch_rows, prefill_chunk_rows)
        self._gathering = Gathering()
        points = [(cost.rows, max(cost.sequences, 1), cost.microseconds / 1e6) for cost in info.forward_costs]
        self._costs = ForwardCosts.measured(points) if points else None
        self._waiting: dict[TargetSequence, PendingRound] = {}
        self._candidates = CandidateRounds(info)

    @property
    def load(self) -> model_pb2.Load:
        """With what the key-value memory has left."""
        load = super().load
        load.num_queued_sequences = self._memory.num_queued
        load.num_free_tokens = self._memory.num_free_tokens
        return load

    @property
    def patience_seconds(self) -> float:
        """Until those of the last pass are back who always come back at once; 0 if nobody else would wait for them."""
        num_waiting = len(self._waiting)
        return self._gathering.wait_seconds(time.perf_counter(), num_waiting) if num_waiting else 0.0

    def _work(self) -> bool:
        """One forward pass over what is ready, and its verdicts. Returns whether there is more to do now."""
        self._metrics.queue_length(len(self._waiting))
        ready = self._memory.ready(self._waiting.values())
        shares = self._memory.fit(self._scheduler.plan(ready, is_anybody_running=self._is_anybody_running()))
        if shares:
            self._run(shares)
            self._flush()
        self._memory.report(self._metrics)
        # Who got no memory waits for older sequences to end.
        return bool(shares) and bool(self._waiting)

    def _owes(self, connection: TargetConnection, sequence_id: bytes) -> bool:
        return self._sequences[connection][sequence_id] in self._waiting

    def _is_anybody_running(self) -> bool:
        since = time.perf_counter() - _RUNNING_SECONDS
        return any(
            sequence.answered > since for sequences in self._sequences.values() for sequence in sequences.values()
        )

    def _carry_out(self, connection: TargetConnection, command: target_pb2.TargetCommand, arrived: float) -> None:
        kind = command.WhichOneof("command")
        if kind == "window":
            self._window(connection, command.sequence_id, command.window, arrived)
        elif kind == "open":
            self._open(connection, command.sequence_id, command.open, arrived)
        elif kind == "candidates":
            message = command.candidates
            sequence = self._find(connection, command.sequence_id, message.epoch)
            pending = self._waiting.get(sequence) if sequence is not None else None
            is_judged = self._candidates.keep(sequence, message, pending)
            # They may have come during the pass that judged the round before.
            began = max(arrived, sequence.answered) if sequence is not None else arrived
            if is_judged and sequence is not None and self._go_on(sequence, began):
                # Nobody has to wait for it any more, it least of all.
                self._gathering.returned(sequence, began)
        elif kind == "close":
            self._forget(connection, command.sequence_id)
        else:
            raise InvalidArgumentError("a command is neither open, window, candidates nor close")

    def _refuse(self, connection: TargetConnection, command: target_pb2.TargetCommand, refusal: Refusal) -> None:
        kind = command.WhichOneof("command")
        asked = command.open if kind == "open" else command.candidates if kind == "candidates" else command.window
        self._fail(connection, command.sequence_id, asked.epoch, asked.round, refusal)

    def _open(
        self, connection: TargetConnection, sequence_id: bytes, command: target_pb2.TargetOpen, arrived: float
    ) -> None:
        if not self._admit(connection, sequence_id, command.epoch):
            return
        sequence = TargetSequence.from_open(
            connection, sequence_id, command, self._info, self._device, self._memory.pool
        )
        if sequence.feature_states and self._hidden_states is not None:
            self._hidden_states.watch(sequence.feature_states)
        self._memory.join(sequence.cache, sequence.max_length + self._info.max_num_draft_tokens)
        self._keep(connection, sequence_id, sequence)
        span = start_window_span(command.trace_context, sequence, command.round, DraftWindow([]))
        self._waiting[sequence] = PendingRound(
            sequence,
            command.round,
            DraftWindow([]),
            span,
            arrived,
            is_open=True,
            max_feature_tokens=command.max_feature_tokens,
            tells_early=command.tells_features_early and bool(sequence.feature_states),
        )

    def _window(
        self, connection: TargetConnection, sequence_id: bytes, window: target_pb2.Window, arrived: float
    ) -> None:
        sequence = self._known(connection, sequence_id, window.epoch)
        if sequence is None:
            return
        round_index = window.round
        pending = self._waiting.get(sequence)
        if pending is not None and round_index == pending.round:
            return  # Asked before, or a candidate; and about to be answered.
        if pending is not None and round_index > pending.round:
            raise FailedPreconditionError(f"round {pending.round} has no verdict yet; wait for it")
        last = sequence.last_event
        if last is not None and round_index <= last.round:
            self._leases.renew((connection, sequence_id))
            for event in sequence.events:
                if round_index == event.round:
                    self._send(connection, event)
            return
        drafts = read_window(window, sequence.rule, self._info)
        check_prefix(
            window.base_length,
            window.checksum,
            known_length=len(sequence.token_ids),
            known_checksum=sequence.checksum,
            what="window",
        )
        if len(sequence.token_ids) >= sequence.max_length:
            raise OutOfRangeError(f"the sequence has reached its max_length of {sequence.max_length}")
        drafts = sequence.fit_window(drafts)
        self._gathering.returned(sequence, arrived)
        span = start_window_span(window.trace_context, sequence, round_index, drafts)
        self._waiting[sequence] = PendingRound(
            sequence,
            round_index,
            drafts,
            span,
            arrived,
            max_feature_tokens=window.max_feature_tokens,
            without_features=window.without_features,
        )

    def _go_on(self, sequence: TargetSequence, now: float) -> bool:
        """Begin the round of the candidate for what has been decided. Returns whether there is one."""
        chosen = self._candidates.choose(sequence)
        if chosen is None:
            return False
        round_index, window, number, context = chosen
        span = start_window_span(context, sequence, round_index, window)
        self._waiting[sequence] = PendingRound(sequence, round_index, window, span, now, candidate=number)
        return True

    def _forget(self, connection: TargetConnection, sequence_id: bytes, reason: BaseException = NOBODY_WAITS) -> None:
        sequence = self._sequences.get(connection, {}).get(sequence_id)
        if sequence is not None:
            self._memory.leave(sequence.cache)
            self._gathering.left(sequence)
            self._candidates.close(sequence)
            pending = self._waiting.pop(sequence, None)
            if pending is not None:
                end_span(pending.span, reason)
        super()._forget(connection, sequence_id)

    def _check_model(self) -> None:
        self._runner.forward([Work(SequenceCache(), [0], 1)])

    def _run_apart(self, shares: list[Share[PendingRound]], error: Exception) -> None:
        """A pass has failed: run its halves, until those it fails for are known, and tell them alone."""
        if len(shares) == 1:
            self._fail_round(shares[0].pending, self._pass_failed(error))
            return
        half = len(shares) // 2
        for part in (shares[:half], shares[half:]):
            self._run(part)

    def _run(self, shares: list[Share[PendingRound]]) -> None:
        started = time.perf_counter()
        batch = [pending.work(num_rows, started, finishes=finishes) for pending, num_rows, finishes in shares]
        pass_rows = PassRows.of(shares)
        try:
            with span(
                names.TARGET_FORWARD,
                links=[share.pending.span.get_span_context() for share in shares if share.pending.span.is_recording()],
                attributes={names.FORWARD_SEQUENCES: len(shares), names.FORWARD_ROWS: pass_rows.total},
            ):
                logits = self._runner.forward(batch)
        except Exception as error:  # noqa: BLE001 - out of memory and whatever else a device may raise
            self._run_apart(shares, error)
            return
        self._num_failed_batches = 0
        duration = time.perf_counter() - started
        self._metrics.forward(duration_seconds=duration, num_sequences=len(shares), num_rows=pass_rows.total)
        self._scheduler.observe(duration, pass_rows)
        self._gathering.passed(*self._split(duration, pass_rows.total, len(shares)))
        judged = []
        highest = iter(highest_of_rounds([share.pending for share in shares if share.finishes], logits))
        for (pending, _, finishes), rows in zip(shares, logits, strict=True):
            if pending.is_open or not finishes:
                pending.cache.publish(pending.token_ids, with_tail=pending.is_open)
            of_rows = next(highest) if finishes else None
            try:
                if finishes:
                    judged.append((pending, *self._judge(pending, rows, of_rows)))
                else:
                    self._tell_features(pending, pending.cache.length)
            except Exception as error:  # noqa: BLE001 - a bug at worst, but of one request
                refusal = refusal_of(error, "the window could not be judged")
                if isinstance(refusal, DataLossError):
                    # No numbers: nobody must start from what led there.
                    pending.cache.withdraw()
                self._fail_round(pending, refusal)
        now = time.perf_counter()
        for pending, *_ in shares:
            pending.compute_seconds += now - started
        for pending, event, verdict in judged:
            pending.tell_timings(verdict.timings, len(shares), pass_rows.total)
            self._answer(pending, event, verdict, now)
        self._leases.renew(*((pending.sequence.connection, pending.sequence.sequence_id) for pending, *_ in judged))

    def _split(self, duration: float, num_rows: int, num_sequences: int) -> tuple[float, float]:
        """What a pass would have taken with nothing in it, and what each sequence added, in seconds."""
        if self._costs is None:
            return duration, 0.0
        self._costs.observe(num_rows, duration, num_sequences)
        fixed = min(duration, self._costs.empty_seconds(num_rows))
        return fixed, (duration - fixed) / num_sequences

    def _judge(
        self, pending: PendingRound, logits: torch.Tensor, highest: list[int] | None
    ) -> tuple[target_pb2.TargetEvent, target_pb2.Verdict]:
        """Decide a window by its logits, (draft tokens + 1, vocab_size), or by the `highest`, and commit the outcome.

        Returns:
            The answer, but for its timings, and the verdict in it.
        """
        sequence, window = pending.sequence, pending.window
        event = target_pb2.TargetEvent(sequence_id=sequence.sequence_id, epoch=sequence.epoch, round=pending.round)
        # Written in place: messages that are put into others are copied.
        verdict = event.opened.first if pending.is_open else event.verdict
        sequence.judge.decide(sequence.token_ids, window, logits, highest, verdict)
        accepted_nodes = verdict.accepted_nodes[:]
        sequence.cache.keep_rows(verdict.base_length, accepted_nodes)
        if sequence.feature_states:
            self._tell_features(pending, sequence.cache.length - sequence.max_feature_tokens)
            verdict.features = pending.features()
        sequence.commit([*[window.token_ids[node] for node in accepted_nodes], verdict.next_token_id])
        sequence.cache.publish(sequence.token_ids)
        return event, verdict

    def _tell_features(self, pending: PendingRound, end: int) -> None:
        """Send what an open's verdict need not carry; not to a peer that does not read, who does without."""
        sequence = pending.sequence
        for told in pending.early_features(end):
            if sequence.connection.num_unread < _MOST_UNREAD:
                event = target_pb2.TargetEvent(
                    sequence_id=sequence.sequence_id, epoch=sequence.epoch, round=pending.round, features=told
                )
                self._send(sequence.connection, event)

    def _fail_round(self, pending: PendingRound, refusal: Refusal) -> None:
        sequence = pending.sequence
        self._fail(sequence.connection, sequence.sequence_id, sequence.epoch, pending.round, refusal)

    def _answer(
        self, pending: PendingRound, event: target_pb2.TargetEvent, verdict: target_pb2.Verdict, now: float
    ) -> None:
        sequence = pending.sequence
        if pending.is_open:
            event.opened.num_cached_tokens = sequence.cache.num_adopted
            self._metrics.prefix(num_tokens=verdict.base_length, num_hit_tokens=sequence.cache.num_adopted)
        if pending.candidate is None:
            # Whoever asks for a round has the answer to the one before.
            sequence.events.clear()
        else:
            verdict.candidate = pending.candidate
        sequence.events.append(event)
        sequence.answered = now
        del self._waiting[sequence]
        self._send(sequence.connection, event)
        if not self._go_on(sequence, now) and len(sequence.token_ids) < sequence.max_length:
            self._gathering.answered(sequence, now)
        if pending.span.is_recording():
            pending.span.set_attributes(span_attributes(verdict, sequence.cache.num_adopted))
        end_span(pending.span)

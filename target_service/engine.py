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
from target_service.answer import Answer, batched
from target_service.asked import AskedWindow, read_batch, read_window
from target_service.candidate_rounds import CandidateRounds
from target_service.judge import DraftWindow
from target_service.sequence import PendingRound, TargetSequence, start_window_span
from target_service.settling import MOST_UNREAD, Settled, settle
from target_service.together import outcomes_together

TargetConnection = Connection[target_pb2.TargetEvent]

_RUNNING_SECONDS = 1.0
"""A sequence that was answered so long ago is thought to come back with its next window at any moment."""


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
        if kind == "windows":
            self._windows(connection, command.windows, arrived)
        elif kind == "window":
            self._window(connection, command.sequence_id, AskedWindow.of(command.window), arrived)
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
            raise InvalidArgumentError("a command is neither open, window, windows, candidates nor close")

    def _refuse(self, connection: TargetConnection, command: target_pb2.TargetCommand, refusal: Refusal) -> None:
        kind = command.WhichOneof("command")
        if kind == "windows":
            self._fail(connection, b"", 0, 0, refusal)
            return
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

    def _windows(self, connection: TargetConnection, message: target_pb2.WindowBatch, arrived: float) -> None:
        for sequence_id, asked in read_batch(message):
            try:
                self._window(connection, sequence_id, asked, arrived)
            except Exception as error:  # noqa: BLE001, PERF203 - a bug at worst, but of one window
                self._fail(connection, sequence_id, asked.epoch, asked.round, refusal_of(error, "a command failed"))

    def _window(self, connection: TargetConnection, sequence_id: bytes, asked: AskedWindow, arrived: float) -> None:
        sequence = self._known(connection, sequence_id, asked.epoch)
        if sequence is None:
            return
        round_index = asked.round
        pending = self._waiting.get(sequence)
        if pending is not None and round_index == pending.round:
            return  # Asked before, or a candidate; and about to be answered.
        if pending is not None and round_index > pending.round:
            raise FailedPreconditionError(f"round {pending.round} has no verdict yet; wait for it")
        last = sequence.last_answer
        if last is not None and round_index <= last.round:
            self._leases.renew((connection, sequence_id))
            for answer in sequence.answers:
                if round_index == answer.round:
                    self._send(connection, answer.event())
            return
        drafts = read_window(asked, sequence.rule, self._info)
        length = len(sequence.token_ids)
        check_prefix(asked.base_length, asked.checksum, length, sequence.checksum, "window")
        if length >= sequence.max_length:
            raise OutOfRangeError(f"the sequence has reached its max_length of {sequence.max_length}")
        drafts = sequence.fit_window(drafts)
        self._gathering.returned(sequence, arrived)
        message = asked.message
        span = start_window_span(message.trace_context if message else None, sequence, round_index, drafts)
        self._waiting[sequence] = PendingRound(
            sequence,
            round_index,
            drafts,
            span,
            arrived,
            is_batched=message is None,
            max_feature_tokens=message.max_feature_tokens if message else 0,
            without_features=asked.without_features,
        )

    def _go_on(self, sequence: TargetSequence, now: float) -> bool:
        """Begin the round of the candidate for what has been decided. Returns whether there is one."""
        if sequence.candidates is None:
            return False
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
        settled: list[Settled] = []
        outcomes = iter(outcomes_together([share.pending for share in shares if share.finishes], logits))
        for (pending, _, finishes), rows in zip(shares, logits, strict=True):
            if pending.is_open or not finishes:
                pending.cache.publish(pending.token_ids, with_tail=pending.is_open)
            outcome = next(outcomes) if finishes else None
            try:
                if finishes:
                    settled.append(settle(pending, rows, outcome, self._tell_features))
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
        together: dict[TargetConnection, list[Answer]] = {}
        for each in settled:
            answer = each.answer(len(shares), pass_rows.total)
            self._answer(each, answer, now)
            if each.goes_in_batch:
                together.setdefault(each.pending.sequence.connection, []).append(answer)
        for connection, answers in together.items():
            for event in batched(answers):
                self._send(connection, event)
        self._leases.renew(*((each.sequence.connection, each.sequence.sequence_id) for each, *_ in settled))

    def _split(self, duration: float, num_rows: int, num_sequences: int) -> tuple[float, float]:
        """What a pass would have taken with nothing in it, and what each sequence added, in seconds."""
        if self._costs is None:
            return duration, 0.0
        self._costs.observe(num_rows, duration, num_sequences)
        fixed = min(duration, self._costs.empty_seconds(num_rows))
        return fixed, (duration - fixed) / num_sequences

    def _tell_features(self, pending: PendingRound, end: int) -> None:
        """Send what an open's verdict need not carry; not to a peer that does not read, who does without."""
        sequence = pending.sequence
        for told in pending.early_features(end):
            if sequence.connection.num_unread < MOST_UNREAD:
                event = target_pb2.TargetEvent(
                    sequence_id=sequence.sequence_id, epoch=sequence.epoch, round=pending.round, features=told
                )
                self._send(sequence.connection, event)

    def _fail_round(self, pending: PendingRound, refusal: Refusal) -> None:
        sequence = pending.sequence
        self._fail(sequence.connection, sequence.sequence_id, sequence.epoch, pending.round, refusal)

    def _answer(self, settled: Settled, answer: Answer, now: float) -> None:
        """Keep the answer to a round that is over, and send it, unless it goes with others."""
        pending = settled.pending
        sequence = pending.sequence
        if answer.num_cached_tokens is not None:
            self._metrics.prefix(num_tokens=answer.base_length, num_hit_tokens=answer.num_cached_tokens)
        if pending.candidate is None:
            # Whoever asks for a round has the answer to the one before.
            sequence.answers.clear()
        sequence.answers.append(answer)
        sequence.answered = now
        del self._waiting[sequence]
        if not settled.goes_in_batch:
            self._send(sequence.connection, answer.event())
        if not self._go_on(sequence, now) and len(sequence.token_ids) < sequence.max_length:
            self._gathering.answered(sequence, now)
        if pending.span.is_recording():
            pending.span.set_attributes(answer.span_attributes(sequence.cache.num_adopted))
            end_span(pending.span)

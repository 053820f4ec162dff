"""The target's engine: everything that is ready goes into one forward pass, then every window is judged."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from specdec.engine.connection import Connection
from specdec.engine.schedule import Share, plan_pass
from specdec.engine.sequences import SequenceEngine, check_prefix
from specdec.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError, Refusal
from specdec.runner.runner import ModelRunner, Work
from specdec.v1 import model_pb2, target_pb2
from target_service.acceptance import accept_coupled
from target_service.logprobs import token_logprobs
from target_service.sequence import PendingRound, TargetSequence, check_window

TargetConnection = Connection[target_pb2.TargetEvent]


class TargetEngine(SequenceEngine[target_pb2.TargetCommand, target_pb2.TargetEvent, TargetSequence]):
    """Verifies windows of many sequences. Lives on an `EngineThread`; nothing here may be called from elsewhere.

    Args:
        runner: runs the model.
        info: what the service advertises; its limits are enforced here.
        device: of the model.
        max_batch_rows: most rows of one forward pass.
    """

    def __init__(
        self, runner: ModelRunner, info: model_pb2.ModelInfo, device: torch.device, max_batch_rows: int
    ) -> None:
        super().__init__(target_pb2.TargetEvent, info.max_num_sequences)
        self._runner = runner
        self._info = info
        self._device = device
        self._max_batch_rows = max_batch_rows
        self._waiting: dict[tuple[TargetConnection, bytes], PendingRound] = {}

    def step(self) -> bool:
        """One forward pass over what is ready, and its verdicts. Returns whether rounds are still pending."""
        shares = plan_pass(self._waiting.values(), self._max_batch_rows)
        if shares:
            self._run(shares)
            self._flush()
        return bool(self._waiting)

    def _carry_out(self, connection: TargetConnection, command: target_pb2.TargetCommand, arrived: float) -> None:
        kind = command.WhichOneof("command")
        if kind == "open":
            self._open(connection, command.sequence_id, command.open, arrived)
        elif kind == "window":
            self._window(connection, command.sequence_id, command.window, arrived)
        elif kind == "close":
            self._forget(connection, command.sequence_id)
        else:
            raise InvalidArgumentError("a command is neither open, window nor close")

    def _refuse(self, connection: TargetConnection, command: target_pb2.TargetCommand, refusal: Refusal) -> None:
        asked = command.open if command.HasField("open") else command.window
        self._fail(connection, command.sequence_id, asked.epoch, asked.round, refusal)

    def _open(
        self, connection: TargetConnection, sequence_id: bytes, command: target_pb2.TargetOpen, arrived: float
    ) -> None:
        if not self._admit(connection, sequence_id, command.epoch):
            return
        sequence = TargetSequence.from_open(connection, sequence_id, command, self._info, self._device)
        self._keep(connection, sequence_id, sequence)
        self._waiting[connection, sequence_id] = PendingRound(
            sequence, command.round, [], None, command.trace_context, arrived, is_open=True
        )

    def _window(
        self, connection: TargetConnection, sequence_id: bytes, window: target_pb2.Window, arrived: float
    ) -> None:
        sequence = self._find(connection, sequence_id, window.epoch)
        if sequence is None:
            return
        pending = self._waiting.get((connection, sequence_id))
        if pending is not None and window.round <= pending.round:
            return  # Asked before, and about to be answered.
        if pending is not None:
            raise FailedPreconditionError(f"round {pending.round} has no verdict yet; wait for it")
        if sequence.last_event is not None and window.round <= sequence.last_event.round:
            if window.round == sequence.last_event.round:
                self._send(connection, sequence.last_event)
            return
        check_window(window, self._info)
        check_prefix(
            window.base_length,
            window.checksum,
            known_length=len(sequence.token_ids),
            known_checksum=sequence.checksum,
            what="window",
        )
        if len(sequence.token_ids) >= sequence.max_length:
            raise OutOfRangeError(f"the sequence has reached its max_length of {sequence.max_length}")
        draft_tokens, parents = sequence.fit_window(window.token_ids, window.parents)
        self._waiting[connection, sequence_id] = PendingRound(
            sequence, window.round, draft_tokens, parents, window.trace_context, arrived
        )

    def _forget(self, connection: TargetConnection, sequence_id: bytes) -> None:
        super()._forget(connection, sequence_id)
        self._waiting.pop((connection, sequence_id), None)

    def _run(self, shares: list[Share[PendingRound]]) -> None:
        started = time.perf_counter()
        batch = []
        for pending, num_rows, finishes in shares:
            if pending.started is None:
                pending.started = started
            sequence = pending.sequence
            first = sequence.cache.length
            if finishes:
                token_ids = [*sequence.token_ids[first:], *pending.draft_tokens]
                batch.append(Work(sequence.cache, token_ids, len(pending.draft_tokens) + 1, pending.parents))
            else:
                batch.append(Work(sequence.cache, sequence.token_ids[first : first + num_rows], 0))
        logits = self._runner.forward(batch)
        verdicts = []
        for share, rows in zip(shares, logits, strict=True):
            if share.finishes:
                try:
                    verdicts.append((share.pending, self._judge(share.pending, rows)))
                except Refusal as refusal:
                    sequence = share.pending.sequence
                    self._fail(sequence.connection, sequence.sequence_id, sequence.epoch, share.pending.round, refusal)
        elapsed = time.perf_counter() - started
        for pending, *_ in shares:
            pending.compute_seconds += elapsed
        for pending, verdict in verdicts:
            verdict.timings.queue_microseconds = round(((pending.started or started) - pending.arrived) * 1e6)
            verdict.timings.compute_microseconds = round(pending.compute_seconds * 1e6)
            verdict.timings.batch_sequences = len(shares)
            verdict.timings.batch_rows = sum(share.num_rows for share in shares)
            self._answer(pending, verdict)

    def _judge(self, pending: PendingRound, logits: torch.Tensor) -> target_pb2.Verdict:
        """Decide a window by its logits, (draft tokens + 1, vocab_size): row 0 judges the first node."""
        sequence = pending.sequence
        base = len(sequence.token_ids)
        verdict = target_pb2.Verdict(base_length=base, num_judged_tokens=len(pending.draft_tokens))

        def choose(node: int, path: Sequence[int]) -> int:
            choice = sequence.chooser.choose(logits[node + 1], sequence.token_ids, path)
            if sequence.num_logprobs is not None:
                verdict.logprobs.append(token_logprobs(logits[node + 1], choice, sequence.num_logprobs))
            return choice.token_id

        outcome = accept_coupled(pending.draft_tokens, pending.parents, choose)
        sequence.commit([*(pending.draft_tokens[node] for node in outcome.accepted_nodes), outcome.next_token_id])
        sequence.cache.keep_rows(base, outcome.accepted_nodes)
        verdict.accepted_nodes.extend(outcome.accepted_nodes)
        verdict.next_token_id = outcome.next_token_id
        verdict.next_token_kind = (
            target_pb2.NEXT_TOKEN_KIND_BONUS if outcome.is_bonus else target_pb2.NEXT_TOKEN_KIND_RECOVERED
        )
        verdict.committed_length = len(sequence.token_ids)
        return verdict

    def _answer(self, pending: PendingRound, verdict: target_pb2.Verdict) -> None:
        sequence = pending.sequence
        event = target_pb2.TargetEvent(sequence_id=sequence.sequence_id, epoch=sequence.epoch, round=pending.round)
        if pending.is_open:
            event.opened.num_cached_tokens = sequence.num_cached_tokens
            event.opened.first.CopyFrom(verdict)
        else:
            event.verdict.CopyFrom(verdict)
        sequence.last_event = event
        del self._waiting[sequence.connection, sequence.sequence_id]
        self._send(sequence.connection, event)

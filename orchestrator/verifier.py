"""The target's side of one request: a verdict for every round, whatever happens to a replica."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.trace import Span

from orchestrator.committed import CommittedTokens, ImpossibleVerdict
from orchestrator.links.mailbox import AnswerOverdue, LinkLost
from orchestrator.links.opening import Opening
from orchestrator.links.target import FeaturesTaker, TargetLink, TargetSequence
from orchestrator.replicas.targets import Targets
from orchestrator.window import EMPTY_WINDOW, Window
from specdec.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    Refusal,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from specdec.telemetry import names, tracing
from specdec.telemetry.metrics import OrchestratorMetrics
from specdec.v1 import model_pb2, target_pb2

_log = logging.getLogger(__name__)

_MAX_FAILURES = 5
"""Failures in a row after which a sequence is given up: it may be what brings the target down."""
_FIRST_PAUSE_SECONDS = 0.02
_LAST_PAUSE_SECONDS = 1.0


class ReplicaSilent(LinkLost):
    """A replica that is connected does not answer anybody.

    Args:
        seconds: that were lost by waiting.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__("the replica has been silent for too long")
        self.seconds = seconds


@dataclass(slots=True)
class Judged:
    """A round that the target has decided."""

    window: Window
    """What was judged; empty if the sequence had to be opened again, which is a round of its own."""
    verdict: target_pb2.Verdict
    token_ids: list[int]
    """The tokens to commit: the accepted draft tokens and the target's own."""
    is_window_refused: bool = False
    """The target called the window malformed: the draft service is at fault."""
    wait_seconds: float = 0.0
    num_cached_tokens: int = 0
    """Tokens that the target had in its prefix cache, if it opened the sequence."""

    def accepts_of(self, proposed: Sequence[int]) -> bool:
        """Whether the accepted draft tokens are those that were proposed."""
        nodes = self.verdict.accepted_nodes
        if nodes and max(nodes) >= len(proposed):
            return False
        return [proposed[node] for node in nodes] == self.token_ids[:-1]


class Verifier:
    """Has windows judged. If the target lost the sequence, opens it again with all that is committed, maybe elsewhere.

    Args:
        targets: the replicas of the target.
        sequence_id: names the request on every stream.
        opening: what the target is told besides the tokens.
        committed: tokens so far; read, never changed.
        round_timeout_seconds: longest wait for the verdict of one round, repairs included.
        metrics: where resyncs are counted.
    """

    def __init__(
        self,
        targets: Targets,
        sequence_id: bytes,
        opening: Opening,
        committed: CommittedTokens,
        round_timeout_seconds: float,
        metrics: OrchestratorMetrics,
    ) -> None:
        self._targets = targets
        self._metrics = metrics
        self._sequence_id = sequence_id
        self._opening = opening
        self._committed = committed
        self._round_timeout_seconds = round_timeout_seconds
        self._kind = targets.kind
        self._epoch = 0
        self._num_failures = 0
        self._link: TargetLink | None = None
        self._sequence: TargetSequence | None = None

    async def prefill(self, parent: Span, on_features: FeaturesTaker | None = None) -> Judged:
        """Open the sequence: round 0, which commits one token.

        Args:
            parent: the request's span.
            on_features: takes the features of the prompt as they are computed; None: no drafter wants them.

        Raises:
            Refusal: no target takes the sequence, or none is there (`UnavailableError`).
        """
        began = time.perf_counter()
        with tracing.span(names.PREFILL, parent=parent) as span:
            context, with_features = tracing.to_trace_context(span), on_features is not None
            judged = await self._open(
                0, self._deadline(), context, with_features=with_features, on_features=on_features
            )
            span.set_attributes(
                {
                    names.INPUT_TOKENS: len(self._committed),
                    names.CACHED_TOKENS: judged.num_cached_tokens,
                    names.SEQUENCE_EPOCH: self._epoch,
                    **self._place(),
                }
            )
            judged.wait_seconds = time.perf_counter() - began
            return judged

    async def verify(self, round_index: int, window: Window, parent: Span) -> Judged:
        """Have a window judged.

        Raises:
            Refusal: as `prefill`.
        """
        began = time.perf_counter()
        with tracing.span(names.VERIFY, parent=parent, attributes={names.ROUND_NUM_DRAFT_TOKENS: len(window)}) as span:
            epoch, link = self._epoch, self._link
            judged = await self._verify(round_index, window, tracing.to_trace_context(span))
            if self._epoch != epoch:
                span.add_event(names.RESYNC_EVENT if self._link is link else names.FAILOVER_EVENT)
                span.set_attributes({names.SEQUENCE_EPOCH: self._epoch, **self._place()})
            judged.wait_seconds = time.perf_counter() - began
            return judged

    async def _verify(self, round_index: int, window: Window, trace_context: model_pb2.TraceContext | None) -> Judged:
        if self._sequence is None or self._link is None:
            raise RuntimeError("prefill comes first")
        deadline = self._deadline()
        if self._link.is_leaving and self._targets.accepting([self._link]):
            # Nothing has failed: it shuts down, and waits for those that it has.
            self._move("leaving")
            return await self._open(round_index, deadline, trace_context, with_features=not window.without_features)
        try:
            verdict = await self._verdict(self._sequence, round_index, window, trace_context)
            token_ids = self._committed.outcome(window, verdict)
        except AnswerOverdue:
            raise self._overdue() from None
        except (LinkLost, Refusal, ImpossibleVerdict) as failure:
            self._count_failure(failure)
            judged = await self._open(round_index, deadline, trace_context, with_features=not window.without_features)
            # A malformed window is no reason to fail the request: the draft service made it.
            judged.is_window_refused = isinstance(failure, InvalidArgumentError) and len(window) > 0
            return judged
        self._num_failures = 0
        return Judged(window, verdict, token_ids)

    async def _verdict(
        self,
        sequence: TargetSequence,
        round_index: int,
        window: Window,
        trace_context: model_pb2.TraceContext | None,
    ) -> target_pb2.Verdict:
        """Send the window and wait for its verdict."""
        committed = self._committed
        sequence.ask(round_index, len(committed), committed.checksum, window, trace_context)
        return await self._answer(sequence)

    async def _answer(self, sequence: TargetSequence) -> target_pb2.Verdict:
        """The verdict of the round asked for, unless another replica had better be asked.

        Raises:
            LinkLost: the stream broke, or the replica is silent and there is another one.
            Refusal, AnswerOverdue: as `TargetSequence.verdict`.
        """
        asked = asyncio.get_running_loop().time()
        patience = sequence.link.patience
        answered = await self._heard(sequence, asked, asked + self._round_timeout_seconds, patience.round_seconds())
        verdict = sequence.verdict()
        patience.answered(answered - asked)
        return verdict

    async def _heard(self, sequence: TargetSequence, asked: float, deadline: float, patience_seconds: float) -> float:
        """Wait for an answer, up to the deadline. Returns when that was over.

        Raises:
            ReplicaSilent: for longer than is usual, and there is another one.
        """
        loop = asyncio.get_running_loop()
        link, now = sequence.link, asked
        while not sequence.is_answered and now < deadline:
            silent_until = max(asked, link.heard) + patience_seconds
            if now >= silent_until:
                if self._targets.accepting([link]):
                    raise ReplicaSilent(now - asked)
                silent_until = now + _LAST_PAUSE_SECONDS
            await sequence.answered(max(min(silent_until, deadline) - now, 0.001))
            now = loop.time()
        return now

    def close(self) -> None:
        """Let the target forget the sequence. Does not wait; harmless at any time."""
        if self._sequence is not None:
            self._sequence.close()

    async def _open(
        self,
        round_index: int,
        deadline: float,
        trace_context: model_pb2.TraceContext | None,
        *,
        with_features: bool,
        on_features: FeaturesTaker | None = None,
    ) -> Judged:
        """Open the sequence under the next epoch, with all that is committed; try again while that may help."""
        loop = asyncio.get_running_loop()
        pause_seconds = _FIRST_PAUSE_SECONDS
        refused: list[TargetLink] = []
        is_first = self._epoch == 0
        while True:
            link = await self._choose(refused, deadline)
            if not is_first:
                self._metrics.resync("target")
                if link is not self._link:
                    self._metrics.failover("target")
            self._link = link
            self._epoch += 1
            asked = loop.time()
            try:
                self._sequence = link.open(
                    self._sequence_id,
                    self._epoch,
                    round_index,
                    self._opening,
                    self._committed.token_ids,
                    trace_context,
                    with_features=with_features,
                    on_features=on_features,
                )
                patience_seconds = link.patience.open_seconds(len(self._committed))
                answered = await self._heard(self._sequence, asked, deadline, patience_seconds)
                opened = self._sequence.opened()
                token_ids = self._committed.outcome(EMPTY_WINDOW, opened.first)
                num_cached_tokens = opened.num_cached_tokens
                link.patience.opened(answered - asked, len(self._committed) - num_cached_tokens)
                link.rest.worked()
                return Judged(EMPTY_WINDOW, opened.first, token_ids, num_cached_tokens=num_cached_tokens)
            except AnswerOverdue:
                raise self._overdue() from None
            except (LinkLost, FailedPreconditionError, ImpossibleVerdict) as failure:
                self._count_failure(failure)
            except (UnavailableError, ResourceExhaustedError) as refusal:
                # A replica that is full or going away: another one may do it. A running sequence waits for one.
                refused.append(link)
                if self._targets.accepting(refused):
                    continue
                pause_seconds = min(max(pause_seconds, refusal.retry_seconds or 0.0), _LAST_PAUSE_SECONDS)
                if is_first or loop.time() + pause_seconds >= deadline:
                    raise
                refused.clear()
            except (InvalidArgumentError, OutOfRangeError, UnimplementedError) as refusal:
                if is_first:
                    raise
                raise UnavailableError(f"the target no longer takes this sequence: {refusal}") from refusal
            except Refusal as refusal:
                # The replica is at fault, its model or its device: another one may do it.
                self._count_failure(refusal)
                refused.append(link)
                if not self._targets.accepting(refused):
                    refused.clear()
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LAST_PAUSE_SECONDS)

    async def _choose(self, refused: list[TargetLink], deadline: float) -> TargetLink:
        """The replica to open the sequence on; waits for one."""
        loop = asyncio.get_running_loop()
        targets, token_ids, salt = self._targets, self._committed.token_ids, self._opening.cache_salt
        cached = targets.prefixes.find(token_ids, salt)
        while True:
            if targets.is_available and targets.kind.difference(self._kind):
                raise UnavailableError("the target was replaced by another model; send the request again")
            link = targets.choose(self._opening.max_length, cached, refused)
            if link is not None:
                targets.prefixes.note(token_ids, salt, link.address)
                return link
            if loop.time() >= deadline:
                raise UnavailableError(f"the target is not available: {targets.problem}")
            await targets.changed(deadline - loop.time())

    def _count_failure(self, failure: Exception) -> None:
        self._move(str(failure))
        self._num_failures += 1
        if self._link is not None and not isinstance(failure, Refusal):
            self._link.rest.failed(failure.seconds if isinstance(failure, ReplicaSilent) else 0.0)
        if self._num_failures >= _MAX_FAILURES:
            kind = DataLossError if isinstance(failure, DataLossError) else UnavailableError
            raise kind(f"the target failed this sequence {_MAX_FAILURES} times in a row: {failure}")

    def _move(self, why: str) -> None:
        """Give the sequence up where it is."""
        _log.info("a sequence is opened again: %s", why)
        if self._sequence is not None:
            self._sequence.close()

    def _place(self) -> dict[str, str]:
        """Where it is, for the trace."""
        return {names.REPLICA: self._link.address} if self._link is not None else {}

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._round_timeout_seconds

    def _overdue(self) -> UnavailableError:
        return UnavailableError(f"the target did not answer within {self._round_timeout_seconds:g} s")

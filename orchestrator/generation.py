"""One request, from admission to its last message."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc
from opentelemetry.trace import Span, SpanContext

from orchestrator.committed import CommittedTokens
from orchestrator.decode_loop import decode
from orchestrator.detokenizer import IncrementalDetokenizer
from orchestrator.drafter import Drafter
from orchestrator.links.draft import DraftLink
from orchestrator.links.opening import SEQUENCE_ID_BYTES, Opening
from orchestrator.links.target import TargetLink
from orchestrator.output import Finish, OutputAssembler, OutputPiece
from orchestrator.request import ResolvedRequest, resolve_request
from orchestrator.request_stats import RequestStats
from orchestrator.rounds import Round
from orchestrator.settings import OrchestratorSettings
from orchestrator.verifier import Verifier
from specdec.errors import Refusal, UnavailableError
from specdec.telemetry import names, tracing
from specdec.telemetry.metrics import OrchestratorMetrics
from specdec.v1 import generation_pb2, model_pb2

_LARGE_REQUEST_BYTES = 1 << 14
"""Requests above this are tokenized off the event loop."""
_FINISH_WORDS = {generation_pb2.FINISH_REASON_STOP: "stop", generation_pb2.FINISH_REASON_LENGTH: "length"}


class Generation:
    """Runs one request, under one span, and counts it when it ends, however it does.

    Args:
        request: as the client sent it.
        target: the link to the target; available.
        draft: the link to the draft service; None: there is none.
        settings: of the orchestrator.
        metrics: where the request and its rounds are counted.
        parent: the client's trace, if it sent one.
    """

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        target: TargetLink,
        draft: DraftLink | None,
        settings: OrchestratorSettings,
        metrics: OrchestratorMetrics,
        parent: SpanContext | None,
    ) -> None:
        if target.model_info is None or target.tokenizer is None:
            raise UnavailableError(f"the target is not available: {target.problem}")
        self._request = request
        self._target = target
        self._draft = draft
        self._settings = settings
        self._metrics = metrics
        self._parent = parent
        self._model_info = target.model_info
        self._model = target.model_info.model_id
        self._tokenizer = target.tokenizer
        self._operation = "chat" if request.HasField("chat") else "text_completion"
        self._admitted = time.perf_counter()
        self._stats = RequestStats(self._admitted)
        self._finish: Finish | None = None

    async def responses(self) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        """Started, a Delta for each round, Finished.

        Both services are told to forget the sequence at once when this ends, cancelling included.

        Raises:
            Refusal: the request is wrong, or the target does not take it or cannot be reached.
        """
        attributes = {names.OPERATION: self._operation, names.PROVIDER: names.PROVIDER_NAME, names.MODEL: self._model}
        span = tracing.start_span(names.GENERATE, parent=self._parent, attributes=attributes)
        failure: BaseException | None = None
        try:
            async with aclosing(self._run(span)) as responses:
                async for response in responses:
                    yield response
        except BaseException as error:
            failure = error
            raise
        finally:
            self._end(span, failure)

    async def _run(self, span: Span) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        request = await self._resolve()
        request_id = secrets.token_hex(16)
        span.set_attributes(_request_attributes(request, request_id))
        yield generation_pb2.GenerateResponse(
            started=generation_pb2.Started(
                request_id=request_id,
                model_id=self._model,
                num_prompt_tokens=len(request.prompt_ids),
                seed=request.sampling.seed,
                acceptance_rule=request.acceptance_rule,
            )
        )
        async with aclosing(self._rounds(request, span)) as rounds:
            async for done, piece in rounds:
                self._add(done, piece)
                delta = generation_pb2.Delta(
                    text=piece.text, token_ids=piece.token_ids, logprobs=piece.logprobs, round=done.report()
                )
                yield generation_pb2.GenerateResponse(delta=delta)
                self._finish = piece.finish
        if self._finish is None:
            raise RuntimeError("the rounds ended before the output did")
        yield generation_pb2.GenerateResponse(finished=self._stats.finished(self._finish))

    async def _resolve(self) -> ResolvedRequest:
        arguments = (self._request, self._model_info, self._settings, self._tokenizer)
        if self._request.ByteSize() > _LARGE_REQUEST_BYTES:
            return await asyncio.to_thread(resolve_request, *arguments)
        return resolve_request(*arguments)

    def _rounds(self, request: ResolvedRequest, span: Span) -> AsyncGenerator[tuple[Round, OutputPiece], None]:
        """The decode loop of this request."""
        num_draft_tokens = request.num_draft_tokens
        if num_draft_tokens is None:
            num_draft_tokens = min(self._settings.num_draft_tokens, self._model_info.max_num_draft_tokens)
        sequence_id = secrets.token_bytes(SEQUENCE_ID_BYTES)
        committed = CommittedTokens(request.prompt_ids, self._model_info.vocab_size, request.max_length)
        opening = Opening(
            prompt_length=len(request.prompt_ids),
            sampling=request.sampling.to_proto(),
            acceptance_rule=request.acceptance_rule,
            max_length=request.max_length,
        )
        drafter = Drafter(
            self._draft if num_draft_tokens else None,
            sequence_id,
            opening,
            committed,
            self._settings.draft_timeout_seconds,
            self._metrics,
        )
        verifier = Verifier(
            self._target, sequence_id, opening, committed, self._settings.round_timeout_seconds, self._metrics
        )
        output = OutputAssembler(
            IncrementalDetokenizer(self._tokenizer.backend, request.prompt_ids),
            request.stop_strings,
            request.sampling.stop_token_ids,
            request.max_new_tokens,
        )
        return decode(committed, drafter, verifier, output, num_draft_tokens, span)

    def _add(self, done: Round, piece: OutputPiece) -> None:
        self._stats.add(done, len(piece.token_ids), time.perf_counter())
        if done.index == 0:
            self._metrics.first_token(self._stats.ttft_seconds, operation=self._operation, model=self._model)
            return
        self._metrics.round_ended(
            num_draft_tokens=done.num_draft_tokens,
            num_accepted_tokens=done.num_accepted_tokens,
            duration_seconds=done.wall_seconds,
            times=done.times(),
        )

    def _end(self, span: Span, failure: BaseException | None) -> None:
        """Count the request, and end its span."""
        status = _status(failure)
        finish_reason = _FINISH_WORDS[self._finish.reason] if self._finish is not None else ""
        span.set_attribute(names.STATUS_CODE, status.name)
        span.set_attributes(self._stats.attributes())
        if finish_reason:
            span.set_attribute(names.FINISH_REASONS, [finish_reason])
        tracing.end_span(span, failure)
        self._metrics.request_ended(
            status,
            operation=self._operation,
            model=self._model,
            duration_seconds=time.perf_counter() - self._admitted,
            finish_reason=finish_reason,
            seconds_per_output_token=self._stats.seconds_per_output_token,
        )


def _request_attributes(request: ResolvedRequest, request_id: str) -> dict[str, tracing.AttributeValue]:
    sampling = request.sampling
    return {
        names.REQUEST_ID: request_id,
        names.ACCEPTANCE_RULE: _short_name(model_pb2.AcceptanceRule.Name(request.acceptance_rule)),
        names.MAX_TOKENS: request.max_new_tokens,
        names.TEMPERATURE: sampling.temperature,
        names.TOP_P: sampling.top_p,
        names.TOP_K: sampling.top_k,
        names.SEED: str(sampling.seed),
    }


def _short_name(rule: str) -> str:
    return rule.removeprefix("ACCEPTANCE_RULE_").lower()


def _status(failure: BaseException | None) -> grpc.StatusCode:
    """What the client is told."""
    if failure is None:
        return grpc.StatusCode.OK
    if isinstance(failure, Refusal):
        return failure.code
    if isinstance(failure, (asyncio.CancelledError, GeneratorExit)):
        return grpc.StatusCode.CANCELLED
    return grpc.StatusCode.INTERNAL

"""One request, from admission to its last message."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc
from opentelemetry.trace import Span, SpanContext

from orchestrator.completion import Completion
from orchestrator.merging import merged
from orchestrator.pipeline import Pipeline
from orchestrator.replicas.drafts import Drafts
from orchestrator.replicas.targets import Targets
from orchestrator.request import ResolvedRequest, resolve_request
from orchestrator.request_stats import sum_attributes
from orchestrator.settings import OrchestratorSettings
from orchestrator.window_size import SharedExperience
from specdec.errors import Refusal, UnavailableError
from specdec.telemetry import names, tracing
from specdec.telemetry.metrics import OrchestratorMetrics
from specdec.v1 import generation_pb2, model_pb2

_LARGE_REQUEST_BYTES = 1 << 14
"""Requests above this are tokenized off the event loop."""
_MANY_RESUMED_TOKENS = 64
"""As many as are read off the event loop; each takes tens of microseconds."""
_FINISH_WORDS = {generation_pb2.FINISH_REASON_STOP: "stop", generation_pb2.FINISH_REASON_LENGTH: "length"}


class Generation:
    """Runs one request, under one span, and counts it when it ends, however it does.

    Args:
        request: as the client sent it.
        targets: replicas of the target; one is available.
        drafts: replicas of the draft service; None: there are none.
        settings: of the orchestrator.
        metrics: where the request and its rounds are counted.
        experience: of all requests, for the choice of K.
        pipeline: of all requests.
        parent: the client's trace, if it sent one.
    """

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        targets: Targets,
        drafts: Drafts | None,
        settings: OrchestratorSettings,
        metrics: OrchestratorMetrics,
        experience: SharedExperience,
        pipeline: Pipeline,
        parent: SpanContext | None,
    ) -> None:
        if targets.model_info is None or targets.tokenizer is None:
            raise UnavailableError(f"the target is not available: {targets.problem}")
        self._request = request
        self._targets = targets
        self._drafts = drafts
        self._settings = settings
        self._metrics = metrics
        self._experience = experience
        self._pipeline = pipeline
        self._parent = parent
        self._model_info = targets.model_info
        self._model = targets.model_info.model_id
        self._tokenizer = targets.tokenizer
        self._operation = "chat" if request.HasField("chat") else "text_completion"
        self._admitted = time.perf_counter()
        self._completions: list[Completion] = []

    async def responses(self) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        """Started, a Delta for each round, Finished for each completion.

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
        self._completions = [
            Completion(
                index,
                request,
                self._admitted,
                self._targets,
                self._model_info,
                self._tokenizer,
                self._drafts,
                self._settings,
                self._metrics,
                self._experience,
                self._pipeline,
            )
            for index in range(request.num_completions)
        ]
        await self._resume(request)
        yield generation_pb2.GenerateResponse(
            started=generation_pb2.Started(
                request_id=request_id,
                model_id=self._model,
                num_prompt_tokens=len(request.prompt_ids),
                seed=request.sampling.seed,
                acceptance_rule=request.acceptance_rule,
            )
        )
        async with aclosing(merged([completion.responses(span) for completion in self._completions])) as responses:
            is_first = True
            async for response in responses:
                if is_first and response.HasField("delta"):
                    seconds = time.perf_counter() - self._admitted
                    self._metrics.first_token(seconds, operation=self._operation, model=self._model, span=span)
                    is_first = False
                yield response

    async def _resolve(self) -> ResolvedRequest:
        arguments = (self._request, self._model_info, self._settings, self._tokenizer)
        if self._request.ByteSize() > _LARGE_REQUEST_BYTES:
            return await asyncio.to_thread(resolve_request, *arguments)
        return resolve_request(*arguments)

    async def _resume(self, request: ResolvedRequest) -> None:
        """Read what the client has already; much of it off the event loop."""
        if sum(map(len, request.resumed_ids)) > _MANY_RESUMED_TOKENS:
            await asyncio.to_thread(self._resume_completions)
        else:
            self._resume_completions()

    def _resume_completions(self) -> None:
        for completion in self._completions:
            completion.resume()

    def _end(self, span: Span, failure: BaseException | None) -> None:
        """Count the request, and end its span."""
        status = _status(failure)
        stats = [completion.stats for completion in self._completions]
        finishes = [completion.finish for completion in self._completions]
        reasons = [_FINISH_WORDS[finish.reason] for finish in finishes if finish is not None]
        span.set_attribute(names.STATUS_CODE, status.name)
        span.set_attributes(sum_attributes(stats))
        if reasons:
            span.set_attribute(names.FINISH_REASONS, reasons)
        paces = [pace for each in stats if (pace := each.seconds_per_output_token) is not None]
        self._metrics.request_ended(
            status,
            operation=self._operation,
            model=self._model,
            duration_seconds=time.perf_counter() - self._admitted,
            finish_reason=reasons[0] if status is grpc.StatusCode.OK else "",
            seconds_per_output_token=max(paces, default=None),
            span=span,
        )
        tracing.end_span(span, failure)


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

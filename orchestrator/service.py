"""The gRPC side of the orchestrator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any

import grpc.aio

from orchestrator.admission import Admission
from orchestrator.alarm import Alarm
from orchestrator.generation import Generation
from orchestrator.pipeline import Pipeline
from orchestrator.replicas.addresses import Addresses
from orchestrator.replicas.drafts import Drafts
from orchestrator.replicas.targets import Targets
from orchestrator.round_costs import RoundCosts
from orchestrator.security import draft_security, target_security
from orchestrator.settings import OrchestratorSettings
from orchestrator.window_size import SharedExperience
from specdec.errors import ResourceExhaustedError
from specdec.serving.health import Health
from specdec.telemetry import tracing
from specdec.telemetry.metrics import OrchestratorMetrics
from specdec.v1 import generation_pb2, generation_pb2_grpc

_log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 16 << 20
_STALLED_READER_SECONDS = 30.0
"""A client that does not read for so long loses its request, so that it does not hold the target's memory."""

Context = grpc.aio.ServicerContext[Any, Any]


class GenerationService(generation_pb2_grpc.GenerationServiceServicer):
    """Generates text with a target and, while there is one, a draft service. Ready when the target is.

    Args:
        settings: where the services are, and the limits.
        metrics: for tests; by default the process's own.
    """

    full_names = (generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name,)
    max_message_bytes = _MAX_MESSAGE_BYTES

    def __init__(self, settings: OrchestratorSettings, metrics: OrchestratorMetrics | None = None) -> None:
        self._settings = settings
        self._metrics = metrics or OrchestratorMetrics()
        self._pipeline = Pipeline(settings.pipeline)
        self._experience = SharedExperience(RoundCosts(self._pipeline.hiding, lambda: self.targets.num_available))
        following = {"resolve_seconds": settings.resolve_seconds, "silence_seconds": settings.silence_seconds}
        self.targets = Targets(
            Addresses.parse(settings.target),
            self._metrics,
            self._report,
            security=target_security(settings),
            **following,
        )
        self.drafts: Drafts | None = None
        draft_addresses = Addresses.parse(settings.draft)
        if draft_addresses:
            self.drafts = Drafts(
                draft_addresses,
                self.targets,
                self._metrics,
                self._report,
                security=draft_security(settings),
                **following,
            )
        self._health: Health | None = None
        self._mismatch = ""
        self._admission = Admission(settings.max_concurrent_requests, self.targets, self._metrics)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the methods to a server."""
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self, server)

    async def start(self, health: Health) -> None:
        """Begin to connect to the services. Health follows the target from now on."""
        self._health = health
        self._report()
        self.targets.start()
        if self.drafts is not None:
            self.drafts.start()

    async def drain(self) -> None:
        """Refuse further requests, and wait until the running ones are done."""
        await self._admission.drain()

    async def close(self) -> None:
        """Close the links."""
        if self.drafts is not None:
            await self.drafts.close()
        await self.targets.close()

    async def Generate(  # noqa: N802 - named by the proto
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        """Stream the text of one request."""
        with (
            closing(_Reader(_STALLED_READER_SECONDS)) as reader,
            self._admission.admitted(context.time_remaining(), _least_tokens(request)) as arrival,
        ):
            async with aclosing(self._generation(request, context).responses()) as responses:
                async for response in responses:
                    arrival.tokens_came(len(response.delta.token_ids))
                    # Verdicts of many requests come together. First all of them go on, so that their next drafts are
                    # asked for; then all their clients are told. A message wakes its client, which takes the processor
                    # and its caches: one between two requests makes each of them cost more.
                    await asyncio.sleep(0)
                    with reader:
                        yield response

    async def GenerateUnary(  # noqa: N802 - named by the proto
        self, request: generation_pb2.GenerateUnaryRequest, context: Context
    ) -> generation_pb2.GenerateUnaryResponse:
        """The text of one request, at the end."""
        answer = generation_pb2.GenerateUnaryResponse()
        with self._admission.admitted(context.time_remaining(), _least_tokens(request.request)) as arrival:
            async with aclosing(self._generation(request.request, context).responses()) as responses:
                async for response in responses:
                    arrival.tokens_came(len(response.delta.token_ids))
                    _gather(answer, response)
        return answer

    def _generation(self, request: generation_pb2.GenerateRequest, context: Context) -> Generation:
        parent = tracing.from_metadata(list(context.invocation_metadata() or ()))
        return Generation(
            request,
            self.targets,
            self.drafts,
            self._settings,
            self._metrics,
            self._experience,
            self._pipeline,
            parent,
        )

    def _report(self) -> None:
        """Tell health, metrics and the log how the links are."""
        if self._health is not None:
            self._health.set_serving(self.targets.is_available)
        self._metrics.replicas_available("target", len(self.targets.accepting()))
        if self.drafts is None:
            return
        mismatch = self.drafts.mismatch
        self._metrics.draft_available(self.drafts.is_available)
        self._metrics.replicas_available("draft", len(self.drafts.accepting()))
        if mismatch and mismatch != self._mismatch:
            _log.error("going on without the draft service: %s", mismatch)
        self._mismatch = mismatch


def _least_tokens(request: generation_pb2.GenerateRequest) -> int:
    """Tokens that a request cannot do without; one that is resumed has some of them."""
    if request.resume_token_ids:
        return 1
    least = max(request.sampling.min_new_tokens, 1)
    return min(least, max(request.max_new_tokens, 1)) if request.HasField("max_new_tokens") else least


def _gather(answer: generation_pb2.GenerateUnaryResponse, response: generation_pb2.GenerateResponse) -> None:
    """Add one event of the stream to the unary answer."""
    if response.HasField("started"):
        answer.started.CopyFrom(response.started)
        return
    event = response.delta if response.HasField("delta") else response.finished
    while len(answer.completions) <= event.completion:
        answer.completions.add()
    completion = answer.completions[event.completion]
    if response.HasField("finished"):
        completion.finished.CopyFrom(response.finished)
        return
    completion.text += response.delta.text
    completion.token_ids.extend(response.delta.token_ids)
    completion.logprobs.extend(response.delta.logprobs)
    completion.rounds.append(response.delta.round)


class _Reader:
    """Notices a client that has stopped reading; made by the task that runs the call, and closed by it.

    Args:
        patience_seconds: what a client may take to read one response.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._task = asyncio.current_task()
        self._alarm = Alarm(self._stall)
        self._is_stalled = False

    def __enter__(self) -> _Reader:
        """Around the yield of a response: the client has its time to read it."""
        self._alarm.start(self._patience_seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raises `ResourceExhaustedError` if it did not."""
        self._alarm.stop()
        if kind is GeneratorExit and self._is_stalled:
            raise ResourceExhaustedError(
                f"nothing was read for {self._patience_seconds:g} s; read the stream as it comes"
            ) from None

    def close(self) -> None:
        """Nothing is sent any more."""
        self._alarm.close()

    def _stall(self) -> None:
        self._is_stalled = True
        if self._task is not None:
            self._task.cancel()

"""The orchestrator's service between fakes, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from orchestrator.service import GenerationService
from orchestrator.settings import OrchestratorSettings
from specdec.client import GenerationResult
from specdec.serving.channel import open_channel
from specdec.serving.host import ServiceHost
from specdec.v1 import generation_pb2, generation_pb2_grpc, sampling_pb2
from tests.orchestrator.counting import Counting
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.serving import serving, until

PROMPT = [40, 41, 42]
NOWHERE = "127.0.0.1:1"


def request(
    prompt: Sequence[int] = PROMPT, max_new_tokens: int = 24, num_draft_tokens: int | None = 4, **fields: Any
) -> generation_pb2.GenerateRequest:
    """A request of token ids."""
    return generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=prompt),
        max_new_tokens=max_new_tokens,
        num_draft_tokens=num_draft_tokens,
        **{"sampling": sampling_pb2.SamplingParams(seed=1), **fields},
    )


@dataclass
class Running:
    """A service that is up."""

    service: GenerationService
    host: ServiceHost
    stub: generation_pb2_grpc.GenerationServiceAsyncStub
    counting: Counting = field(default_factory=Counting)

    async def generate(self, asked: generation_pb2.GenerateRequest | None = None) -> GenerationResult:
        """The whole stream of one request."""
        result = GenerationResult()
        async for response in self.stub.Generate(asked or request(), timeout=30):
            result.add(response)
        return result


@asynccontextmanager
async def running(
    target: FakeTarget | str, draft: FakeDraft | str = "", *, wait: bool = True, **settings: Any
) -> AsyncIterator[Running]:
    """The service on a free port, connected to fakes (or to addresses).

    Args:
        target: served here, or the address of one.
        draft: as `target`; empty: none.
        wait: until the links are up.
        settings: of the orchestrator.
    """
    async with AsyncExitStack() as stack:
        addresses = [
            peer if isinstance(peer, str) else f"127.0.0.1:{await stack.enter_async_context(serving(peer))}"
            for peer in (target, draft)
        ]
        counting = Counting()
        service = GenerationService(
            OrchestratorSettings(target=addresses[0], draft=addresses[1], **settings), counting.metrics
        )
        host = ServiceHost(service, host="127.0.0.1", port=0, drain_seconds=2)
        await host.start()
        stack.push_async_callback(host.stop)
        if wait:
            await until(lambda: service.targets.is_available)
            drafts = service.drafts
            await until(
                lambda: drafts is None or isinstance(draft, str) or any(link.is_available for link in drafts.links)
            )
        channel = await stack.enter_async_context(open_channel(host.address, max_message_bytes=1 << 24))
        yield Running(service, host, generation_pb2_grpc.GenerationServiceStub(channel), counting)

"""The gRPC side of the draft service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc

from draft_service.drafters.drafter import Drafter
from draft_service.engine import DraftEngine
from draft_service.sequence import DraftSequence
from draft_service.settings import DraftSettings
from specdec import PROTOCOL_VERSION
from specdec.engine.limits import max_message_bytes
from specdec.engine.service import EngineHost
from specdec.engine.stream import run_stream
from specdec.errors import UnavailableError
from specdec.serving.health import Health
from specdec.v1 import draft_pb2, draft_pb2_grpc, model_pb2


class DraftService(draft_pb2_grpc.DraftServiceServicer):
    """Serves one drafter.

    Args:
        settings: limits of the service.
        load: gives the drafter; blocks, and is called off the event loop.
    """

    full_names = (draft_pb2.DESCRIPTOR.services_by_name["DraftService"].full_name,)

    def __init__(self, settings: DraftSettings, load: Callable[[], Drafter]) -> None:
        self._settings = settings
        self._load = load
        self._info: model_pb2.ModelInfo | None = None
        self._host: EngineHost[draft_pb2.DraftCommand, draft_pb2.DraftEvent, DraftSequence] = EngineHost("draft")
        self.max_message_bytes = max_message_bytes(settings.max_context_length, settings.max_num_draft_tokens)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the methods to a server."""
        draft_pb2_grpc.add_DraftServiceServicer_to_server(self, server)

    async def start(self, health: Health) -> None:
        """Load the drafter and begin to serve.

        Raises:
            ModelError: the draft model cannot be served.
        """
        drafter = await asyncio.to_thread(self._load)
        drafter.info.protocol_version = PROTOCOL_VERSION
        self._info = drafter.info
        self._host.start(DraftEngine(drafter, lease_seconds=self._settings.lease_seconds), health)

    async def drain(self) -> None:
        """Refuse further sequences and wait for the open ones."""
        await self._host.drain()

    async def close(self) -> None:
        """Stop the engine."""
        await self._host.close()

    async def GetModelInfo(  # noqa: N802 - named by the proto
        self,
        request: draft_pb2.DraftServiceGetModelInfoRequest,
        context: grpc.aio.ServicerContext[
            draft_pb2.DraftServiceGetModelInfoRequest, draft_pb2.DraftServiceGetModelInfoResponse
        ],
    ) -> draft_pb2.DraftServiceGetModelInfoResponse:
        """Facts of the drafter."""
        if self._info is None:
            raise UnavailableError("the draft service is still loading its model; try again shortly")
        return draft_pb2.DraftServiceGetModelInfoResponse(model_info=self._info)

    async def Propose(  # noqa: N802 - named by the proto
        self,
        request_iterator: AsyncIterator[draft_pb2.ProposeRequest],
        context: grpc.aio.ServicerContext[draft_pb2.ProposeRequest, draft_pb2.ProposeResponse],
    ) -> AsyncIterator[draft_pb2.ProposeResponse]:
        """One orchestrator's stream."""
        news = self._host.load_news()
        async for events in run_stream(
            request_iterator, lambda message: message.commands, self._host.thread, lambda: news.is_due
        ):
            yield draft_pb2.ProposeResponse(events=events, load=news.tell())

"""Fakes on a port, and waiting for what they see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from specdec.serving.channel import server_options
from specdec.v1 import draft_pb2_grpc, target_pb2_grpc
from tests.orchestrator.fakes import FakeDraft, FakeTarget

_MAX_MESSAGE_BYTES = 64 << 20


@asynccontextmanager
async def serving(fake: FakeTarget | FakeDraft, port: int = 0) -> AsyncIterator[int]:
    """Serve a fake on 127.0.0.1; gives the port. At the end its streams are cut as in a crash."""
    server = grpc.aio.server(options=server_options(_MAX_MESSAGE_BYTES))
    if isinstance(fake, FakeTarget):
        target_pb2_grpc.add_TargetServiceServicer_to_server(fake, server)
    else:
        draft_pb2_grpc.add_DraftServiceServicer_to_server(fake, server)
    if fake.health is not None:
        health_pb2_grpc.add_HealthServicer_to_server(fake.health, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for a condition that is about to hold; fails the test if it does not."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)

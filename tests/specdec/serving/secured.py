"""The toy service behind certificates and gates, and calls that try to get in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.serving.channel import open_channel
from specdec.serving.channel_security import ChannelSecurity
from specdec.serving.host import ServiceHost
from specdec.serving.server_security import ServerSecurity
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.specdec.serving.toy_service import MAX_MESSAGE_BYTES, ToyService

ATTEMPT_SECONDS = 8.0
"""Bound on a call that is let in or refused."""
SECRET = "the-secret-of-this-test-0123456789"  # noqa: S105
OTHER_SECRET = "another-secret-of-this-test-98765"  # noqa: S105
PROMPT = "a prompt that stays where it is"


@asynccontextmanager
async def secured(security: ServerSecurity, service: ToyService | None = None) -> AsyncIterator[ServiceHost]:
    """A toy on 127.0.0.1."""
    async with ServiceHost(
        service or ToyService(), host="127.0.0.1", port=0, drain_seconds=1, security=security
    ) as host:
        yield host


async def attempt(
    address: str, security: ChannelSecurity | None = None, metadata: tuple[tuple[str, str], ...] = ()
) -> grpc.aio.AioRpcError | None:
    """Call both methods; how they were refused (the same for both), or None if they were let in."""
    async with open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES, security=security) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = generation_pb2.GenerateRequest(text=PROMPT, max_new_tokens=2)
        unary = stub.GenerateUnary(
            generation_pb2.GenerateUnaryRequest(request=request), timeout=ATTEMPT_SECONDS, metadata=metadata
        )
        stream = stub.Generate(request, timeout=ATTEMPT_SECONDS, metadata=metadata)
        outcomes = []
        try:
            await unary
        except grpc.aio.AioRpcError as error:
            outcomes.append(error)
        try:
            async for _ in stream:
                pass
        except grpc.aio.AioRpcError as error:
            outcomes.append(error)
    assert len(outcomes) in (0, 2), outcomes
    assert len({error.code() for error in outcomes}) < 2, outcomes
    return outcomes[0] if outcomes else None


async def refusal(
    address: str, security: ChannelSecurity | None = None, metadata: tuple[tuple[str, str], ...] = ()
) -> grpc.StatusCode:
    """The code that a call is refused with, in bounded time and without a secret or prompt in its message."""
    error = await asyncio.wait_for(attempt(address, security, metadata), 2 * ATTEMPT_SECONDS)
    assert error is not None, "it was let in"
    told = f"{error.details()} {error.debug_error_string()}"
    assert not any(secret in told for secret in (SECRET, OTHER_SECRET, PROMPT, "PRIVATE KEY"))
    return error.code()


async def until_true(question: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    """Ask again and again until the answer is yes; fails the test if it does not become that."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await question():
        assert asyncio.get_running_loop().time() < deadline, "the answer did not become yes"
        await asyncio.sleep(0.02)


async def is_healthy(address: str, security: ChannelSecurity | None = None) -> bool:
    """What health says to whom, by both of its methods."""
    async with open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES, security=security) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        checked = await stub.Check(health_pb2.HealthCheckRequest(), timeout=ATTEMPT_SECONDS)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=ATTEMPT_SECONDS)
        watched = await watch.read()
        watch.cancel()
    return bool(checked.status == watched.status == health_pb2.HealthCheckResponse.SERVING)

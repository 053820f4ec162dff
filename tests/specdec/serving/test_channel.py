import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from specdec.serving.channel import (
    CONNECT_TIMEOUT_SECONDS,
    DEFAULT_KEEPALIVE,
    MAX_RECONNECT_SECONDS,
    MIN_KEEPALIVE_SECONDS,
    Keepalive,
    open_channel,
    server_options,
)
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.specdec.serving.toy_process import rest_of, toy_process
from tests.specdec.serving.toy_service import FULL_NAME, MAX_MESSAGE_BYTES

pytestmark = pytest.mark.timeout(60)

FASTEST = Keepalive(time_seconds=MIN_KEEPALIVE_SECONDS, timeout_seconds=0.5)


@asynccontextmanager
async def serving(stream: Any, keepalive: Keepalive = DEFAULT_KEEPALIVE) -> AsyncIterator[str]:
    """Serve `stream` as the toy's Generate, on bytes; yields the address."""
    server = grpc.aio.server(options=server_options(MAX_MESSAGE_BYTES, keepalive))
    handler: Any = grpc.unary_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(FULL_NAME, {"Generate": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_the_fastest_pings_do_not_break_a_silent_stream() -> None:
    async def silent(request: bytes, context: object) -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.sleep(4)
        yield b"last"

    async with (
        serving(silent) as address,
        open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES, keepalive=FASTEST) as channel,
    ):
        call: Any = channel.unary_stream(f"/{FULL_NAME}/Generate")
        received = [message async for message in call(b"")]
        # Nor does a time without any call.
        await asyncio.sleep(2)
        state = channel.get_state()
    assert received == [b"first", b"last"]
    assert state is grpc.ChannelConnectivity.READY


async def test_a_frozen_server_is_noticed() -> None:
    async with toy_process() as toy:
        address = await toy.address()
        async with open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES, keepalive=FASTEST) as channel:
            stream = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
                generation_pb2.GenerateRequest(max_new_tokens=1_000_000)
            )
            await stream.read()
            toy.signal(signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as lost:
                await rest_of(stream)
            assert time.monotonic() - began < 3
            assert lost.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_frozen_client_is_noticed() -> None:
    ended = asyncio.Event()

    async def silent(request: bytes, context: object) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with (
        serving(silent, FASTEST) as address,
        toy_process(address, module="tests.specdec.serving.toy_client") as client,
    ):
        await client.wait_for_line("received")
        client.signal(signal.SIGSTOP)
        began = time.monotonic()
        await asyncio.wait_for(ended.wait(), 5)
    assert time.monotonic() - began < 3


async def test_a_channel_comes_back_soon_after_its_server() -> None:
    async with toy_process() as first:
        address = await first.address()
        async with open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            request = generation_pb2.GenerateUnaryRequest(request=generation_pb2.GenerateRequest(text="hello"))
            await stub.GenerateUnary(request)
            first.signal(signal.SIGKILL)
            await first.status()
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.GenerateUnary(request)
                await asyncio.sleep(0.1)
            async with toy_process("--port", address.rpartition(":")[2]) as second:
                await second.wait_for_line("ready")
                answer = await stub.GenerateUnary(request, wait_for_ready=True, timeout=1.5 * MAX_RECONNECT_SECONDS)
    assert answer.completions[0].text == "hello"


async def test_a_peer_that_never_speaks_is_given_up() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        async with open_channel(f"127.0.0.1:{mute.getsockname()[1]}", max_message_bytes=MAX_MESSAGE_BYTES) as channel:
            began = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as lost:
                await generation_pb2_grpc.GenerationServiceStub(channel).GenerateUnary(
                    generation_pb2.GenerateUnaryRequest()
                )
    assert time.monotonic() - began < CONNECT_TIMEOUT_SECONDS + 2
    assert lost.value.code() is grpc.StatusCode.UNAVAILABLE


def test_pings_that_servers_do_not_allow_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 0\.5"):
        Keepalive(time_seconds=0.4)

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from specdec.serving.channel import open_channel
from specdec.serving.channel_security import ChannelSecurity

SECRET = "the-secret-of-this-test-0123456789"  # noqa: S105
OWN = (("traceparent", "x"),)


def answer(context: Any) -> bytes:
    """What the server was told besides the message."""
    told = dict(context.invocation_metadata())
    return f"{told['authorization']} {told.get('traceparent')}".encode()


async def unary_unary(request: bytes, context: Any) -> bytes:
    return answer(context)


async def unary_stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield answer(context)


async def stream_unary(requests: AsyncIterator[bytes], context: Any) -> bytes:
    return answer(context)


async def stream_stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for _ in requests:
        yield answer(context)


async def test_every_shape_of_call_carries_the_secret_and_its_own_metadata() -> None:
    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "uu": grpc.unary_unary_rpc_method_handler(unary_unary),
        "us": grpc.unary_stream_rpc_method_handler(unary_stream),
        "su": grpc.stream_unary_rpc_method_handler(stream_unary),
        "ss": grpc.stream_stream_rpc_method_handler(stream_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    expected = f"Bearer {SECRET} x".encode()
    security = ChannelSecurity(secret=lambda: SECRET)
    async with open_channel(f"127.0.0.1:{port}", max_message_bytes=1000, security=security) as opened:
        channel: Any = opened
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE
        await channel.channel_ready()
        assert await channel.unary_unary("/x/uu")(b"", metadata=OWN, timeout=5) == expected
        assert await channel.unary_stream("/x/us")(b"", metadata=OWN, timeout=5).read() == expected
        assert await channel.stream_unary("/x/su")(metadata=OWN, timeout=5) == expected
        call = channel.stream_stream("/x/ss")(metadata=OWN, timeout=5)
        for _ in range(3):
            await call.write(b"")
            assert await call.read() == expected
        assert await channel.unary_unary("/x/uu")(b"", timeout=5) == f"Bearer {SECRET} None".encode()
        call.cancel()
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
    await server.stop(None)

"""A gRPC stream that sends back every message: what a round trip between two services takes at least.

python -m benchmarks.links.stream_echo ADDRESS
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

_SERVICE, _METHOD = "specdec.benchmarks.Echo", "Echo"
_NUM_BYTES = 200
"""About what a window or a short verdict takes."""


async def serve(address: str) -> None:
    """Answer at an address until the process ends."""
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(_echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    await server.start()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    await server.wait_for_termination()


async def round_trips(address: str, num_probes: int, pause_seconds: float) -> list[float]:
    """Round trips of a message each over one stream, in seconds.

    Args:
        address: of `serve`.
        num_probes: how many.
        pause_seconds: before each, in which both sides sleep.

    Raises:
        grpc.aio.AioRpcError: the stream broke.
    """
    found = []
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")()
        # The first one also waits for the connection.
        for number in range(num_probes + 1):
            await asyncio.sleep(pause_seconds)
            began = time.perf_counter()
            await call.write(bytes(_NUM_BYTES))
            await call.read()
            if number:
                found.append(time.perf_counter() - began)
        call.cancel()
    return found


async def _echo(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))

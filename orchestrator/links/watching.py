"""Whether a replica that is connected takes new sequences, by its health (grpc.health.v1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

_AGAIN_SECONDS = 1.0


async def watch_health(channel: grpc.aio.Channel, on_change: Callable[[bool], None]) -> None:
    """Follow the health of a server until cancelled. A server without health service counts as healthy.

    Args:
        channel: to it.
        on_change: told whether it is serving.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    while True:
        call = stub.Watch(health_pb2.HealthCheckRequest())
        try:
            async for response in call:
                # Of the other values, SERVICE_UNKNOWN says that it does not tell.
                on_change(response.status != health_pb2.HealthCheckResponse.NOT_SERVING)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return
        finally:
            call.cancel()
        # The stream of the link says whether the server is there; this one is only opened again.
        await asyncio.sleep(_AGAIN_SECONDS)

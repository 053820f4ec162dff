"""grpc.health.v1 for one service."""

import asyncio
import logging
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

logger = logging.getLogger(__name__)

LIVENESS_NAME = "liveness"
"""Health name that is SERVING as long as the event loop answers, also while a model loads or running work drains."""

_Status = health_pb2.HealthCheckResponse.ServingStatus


class Health:
    """What the service says of itself: not serving until told otherwise, and never again once `close` was called.

    The answer is the same for the overall name "" and for each of the service's full names.
    """

    def __init__(self, full_names: Sequence[str]) -> None:
        self._names = ("", *full_names)
        self._servicer = health_aio.HealthServicer()
        self._is_serving = False
        self._is_closed = False
        self._changed = asyncio.Event()
        self._publisher: asyncio.Task[None] | None = None

    def register(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    @property
    def is_serving(self) -> bool:
        return self._is_serving

    def set_serving(self, serving: bool) -> None:
        """Say whether requests can be served from now on. Takes effect within one turn of the event loop."""
        if self._is_closed or serving == self._is_serving:
            return
        self._is_serving = serving
        if serving:
            logger.info("ready")
        else:
            logger.warning("not ready")
        self._changed.set()

    async def open(self) -> None:
        """Publish the first answer, and every later change until `close`."""
        await self._servicer.set(LIVENESS_NAME, health_pb2.HealthCheckResponse.SERVING)
        await self._publish()
        self._publisher = asyncio.create_task(self._publish_changes(), name="health")

    async def close(self) -> None:
        """Not serving, for good."""
        self._is_closed = True
        self._is_serving = False
        if self._publisher is not None:
            self._publisher.cancel()
            await asyncio.wait({self._publisher})
        await self._publish()

    async def _publish_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._publish()

    async def _publish(self) -> None:
        status = (
            health_pb2.HealthCheckResponse.SERVING if self._is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in self._names:
            await self._servicer.set(name, status)

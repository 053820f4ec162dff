"""grpc.health.v1 for one service.

Not the servicer of grpcio-health-checking: that one writes to a watcher while it holds a lock, so one client that stops
reading would freeze the health that all others see, and the shutdown with it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.errors import ResourceExhaustedError

logger = logging.getLogger(__name__)

LIVENESS_NAME = "liveness"
"""Health name that is SERVING unless the service has failed for good; also while a model loads, or work drains."""

MAX_WATCHERS = 1024
"""Anybody may watch, so what that takes is bounded."""


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """What the service says of itself, to be told on the event loop.

    The overall name "" and each of the service's full names say the same: not serving until told otherwise, and never
    again after `close`.
    """

    def __init__(self, full_names: Sequence[str]) -> None:
        self._names = frozenset(("", *full_names))
        self._is_serving = False
        self._is_alive = True
        self._is_closed = False
        self._watchers: set[asyncio.Event] = set()

    @property
    def is_serving(self) -> bool:
        """Whether requests can be served."""
        return self._is_serving

    def set_serving(self, serving: bool) -> None:
        """Say whether requests can be served from now on."""
        if self._is_closed or not self._is_alive or serving == self._is_serving:
            return
        self._is_serving = serving
        if serving:
            logger.info("ready")
        else:
            logger.warning("not ready")
        self._tell_watchers()

    def fail(self) -> None:
        """Say that the service cannot serve again in this process, so that whoever watches its liveness restarts it."""
        self.set_serving(False)
        self._is_alive = False
        self._tell_watchers()

    def close(self) -> None:
        """Not serving, for good, because the service is stopping."""
        self._is_serving = False
        self._is_closed = True
        self._tell_watchers()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802
        """The status now; NOT_FOUND for a name that is not served."""
        status = self._status(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of that name is served here")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and after every change; a watcher that is slow misses changes that did not last.

        Raises:
            ResourceExhaustedError: too many watch.
        """
        if len(self._watchers) >= MAX_WATCHERS:
            raise ResourceExhaustedError(f"{MAX_WATCHERS} watch already, which is the limit; ask with Check")
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while True:
                changed.clear()
                yield health_pb2.HealthCheckResponse(status=self._status(request.service))
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def _status(self, name: str) -> "health_pb2.HealthCheckResponse.ServingStatus":
        if name == LIVENESS_NAME:
            is_good = self._is_alive
        elif name in self._names:
            is_good = self._is_serving
        else:
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        return health_pb2.HealthCheckResponse.SERVING if is_good else health_pb2.HealthCheckResponse.NOT_SERVING

    def _tell_watchers(self) -> None:
        for changed in self._watchers:
            changed.set()

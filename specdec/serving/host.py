"""A service and its server in one event loop: listening, health, and an orderly end."""

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from specdec.serving.binding import bind, joined
from specdec.serving.channel import server_options
from specdec.serving.health import Health
from specdec.serving.health_port import HealthPort
from specdec.serving.refusals import RefusalInterceptor
from specdec.serving.reloaded import keep_fresh
from specdec.serving.server_security import PLAINTEXT, ServerSecurity

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Bound on `Service.close`, and on a cancelled `start` or `drain` to come to its end."""
STOP_GRACE_SECONDS = 0.5
"""After the drain, what calls that are left get before they are cut."""


class Service(Protocol):
    """What a service brings; the host brings the rest. Construct it inside the event loop it runs in."""

    @property
    def full_names(self) -> tuple[str, ...]:
        """gRPC service names, for health and reflection."""
        ...

    @property
    def max_message_bytes(self) -> int:
        """Largest message, either way, computed from the limits that the service advertises."""
        ...

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicers to the server; called before it listens."""
        ...

    async def start(self, health: Health) -> None:
        """Load the model, do the handshake. The server listens already, so handlers refuse until this is done.

        Call `health.set_serving` here, or at any later time from a background task.
        """
        ...

    async def drain(self) -> None:
        """Refuse new work and wait until running work is done; cancelled when its time is up."""
        ...

    async def close(self) -> None:
        """Release everything. Called once, also after a start that failed or was cut short."""
        ...


class ServiceHost:
    """Runs one service. `async with` starts it and stops it.

    Args:
        service: the service.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        drain_seconds: how long running work may go on once `stop` is called.
        security: certificates, and who is served.
    """

    def __init__(
        self, service: Service, *, host: str, port: int, drain_seconds: float, security: ServerSecurity = PLAINTEXT
    ) -> None:
        self._service = service
        self._host = host
        self._port = port
        self._drain_seconds = drain_seconds
        self._is_listening = False
        self._is_started = False
        self._health = Health(service.full_names)
        self._security = security
        self._reloading: asyncio.Task[None] | None = None
        self._health_port: HealthPort | None = None
        self._server = grpc.aio.server(
            interceptors=[RefusalInterceptor(), *security.gates], options=server_options(service.max_message_bytes)
        )
        service.register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if security.has_reflection:
            names = (*service.full_names, grpc_health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)

    @property
    def port(self) -> int:
        """Port in use, once it listens."""
        return self._port

    @property
    def address(self) -> str:
        """host:port, as a channel takes it."""
        return joined(self._host, self._port)

    @property
    def health_address(self) -> str:
        """Where health is asked for in plaintext, once it listens; `address` if there is no port for it alone."""
        return self.address if self._health_port is None else joined(self._host, self._health_port.port)

    @property
    def health(self) -> Health:
        """What the service says of itself."""
        return self._health

    async def listen(self) -> None:
        """Bind and answer health checks, with NOT_SERVING.

        Raises:
            BindError: the address cannot be listened on.
        """
        self._port = await bind(self._server, self._host, self._port, self._security.credentials)
        if self._security.health_port is not None:
            self._health_port = HealthPort(self._health)
            await self._health_port.listen(self._host, self._security.health_port)
        await self._server.start()
        if self._security.reloadables:
            self._reloading = asyncio.create_task(keep_fresh(self._security.reloadables), name="reload of files")
        self._is_listening = True

    async def start(self) -> None:
        """Listen, unless it does already, and start the service.

        Raises:
            BindError: the address cannot be listened on.
            Exception: whatever the service's start raises.
        """
        if not self._is_listening:
            await self.listen()
        await self._service.start(self._health)
        self._is_started = True

    async def stop(self) -> None:
        """Not serving; drain for at most `drain_seconds`; cut what is left; close. Every step is bounded."""
        self._health.close()
        if self._is_started:
            await run_bounded(self._service.drain(), self._drain_seconds, "running work did not end in time and is cut")
        await run_bounded(
            self._server.stop(STOP_GRACE_SECONDS), STOP_GRACE_SECONDS + CLOSE_SECONDS, "the server did not stop in time"
        )
        if self._health_port is not None:
            await run_bounded(self._health_port.close(), CLOSE_SECONDS, "the port for health did not close in time")
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.wait({self._reloading}, timeout=CLOSE_SECONDS)
        await run_bounded(self._service.close(), CLOSE_SECONDS, "the service did not close in time")

    async def __aenter__(self) -> "ServiceHost":
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def run_bounded(step: Coroutine[Any, Any, None], seconds: float, complaint: str) -> None:
    """Run `step`, cancel it after `seconds` with a warning, and leave it behind if it does not heed that either.

    An exception of `step` is logged and goes no further: what follows it in a shutdown must happen all the same.
    """
    task = asyncio.ensure_future(step)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            logger.warning(complaint)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_SECONDS)
    if task.done() and not task.cancelled() and task.exception() is not None:
        logger.error("a step of the shutdown failed", exc_info=task.exception())

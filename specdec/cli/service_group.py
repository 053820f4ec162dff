"""Several services as child processes of this one: started together, watched, and ended together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.cli.child_process import ChildProcess, LineSink

_HEALTH_TIMEOUT_SECONDS = 1.0
_RECONNECT_SOON = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
_POLL_SECONDS = 0.1
_STOP_MARGIN_SECONDS = 10.0
_LAST_LINES = 15


@dataclass(frozen=True)
class ServiceSpec:
    """One service to start."""

    name: str
    command: tuple[str, ...]
    """Absolute path of the program, and its arguments."""
    address: str
    """HOST:PORT where the command will serve gRPC."""
    environment: Mapping[str, str] = field(default_factory=dict)
    is_last: bool = False
    """Whether it is started when those that are not so are ready: then it finds at once whatever it calls."""
    health_address: str = ""
    """HOST:PORT where it will say in plaintext whether it serves; empty: `address`."""
    metrics_address: str = ""
    """HOST:PORT where it will serve its metrics; empty: nowhere that is known here."""


class ServiceFailedError(Exception):
    """A service did not start, or ended by itself. The message names it and ends with its last log lines."""


class ServiceGroup:
    """Starts services on entry, waits until each says SERVING, and ends them on exit: the last of the list first.

    Put a service after those that it calls; then its running requests are drained while the others still answer.
    """

    def __init__(
        self,
        specs: Sequence[ServiceSpec],
        *,
        on_line: LineSink | None = None,
        on_serving: Callable[[str, float], None] | None = None,
        start_timeout_seconds: float = 900.0,
        drain_seconds: float = 20.0,
    ) -> None:
        """
        Args:
            specs: what to start; names and addresses are distinct.
            on_line: called with each log line of each service.
            on_serving: called with a service's name and the seconds that its start took.
            start_timeout_seconds: longest wait for all of them; the first start of a model may download it.
            drain_seconds: drain time of the services themselves; they are killed well after it.
        """
        self.specs = tuple(specs)
        self._children = {
            spec.name: ChildProcess(spec.name, spec.command, environment=spec.environment, on_line=on_line)
            for spec in specs
        }
        self._on_serving = on_serving
        self._start_timeout_seconds = start_timeout_seconds
        self._grace_seconds = drain_seconds + _STOP_MARGIN_SECONDS

    async def __aenter__(self) -> ServiceGroup:
        """
        Raises:
            ServiceFailedError: one of them ended, or was not ready in time; the others are ended too.
        """
        try:
            await self._start(self.specs)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def __getitem__(self, name: str) -> ChildProcess:
        return self._children[name]

    @property
    def address(self) -> str:
        """Where the last service of the list, the one that clients call, listens."""
        return self.specs[-1].address

    async def first_failure(self) -> None:
        """Wait until a service ends by itself, and raise.

        Raises:
            ServiceFailedError: always, at that moment.
        """
        ends = [asyncio.create_task(child.wait()) for child in self._children.values()]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self._raise_if_ended()
        finally:
            await _cancel(ends)

    async def restart(self, name: str) -> None:
        """Kill one service, start it again at the same address, and wait until it says SERVING."""
        child = self._children[name]
        child.kill()
        await child.wait()
        await self._start([spec for spec in self.specs if spec.name == name])

    async def stop(self) -> None:
        """End them all: in order if there is time, at once if this is cancelled."""
        *others, front = self._children.values()
        try:
            await front.stop(self._grace_seconds)
            await asyncio.gather(*(child.stop(self._grace_seconds) for child in others))
        finally:
            for child in self._children.values():
                child.kill()
            await asyncio.gather(*(child.stop(0) for child in self._children.values()))

    async def _start(self, specs: Sequence[ServiceSpec]) -> None:
        for is_last in (False, True):
            if wave := [spec for spec in specs if spec.is_last == is_last]:
                await self._start_at_once(wave)

    async def _start_at_once(self, specs: Sequence[ServiceSpec]) -> None:
        for spec in specs:
            await self._children[spec.name].start()
        began = time.monotonic()
        waits = {asyncio.create_task(self._serving(spec, began)): spec.name for spec in specs}
        try:
            done, late = await asyncio.wait(
                waits, timeout=self._start_timeout_seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            for wait in done:
                wait.result()
            if late:
                names = ", ".join(sorted(waits[wait] for wait in late))
                raise ServiceFailedError(f"not ready after {self._start_timeout_seconds:g} seconds: {names}")
        finally:
            await _cancel(waits)

    async def _serving(self, spec: ServiceSpec, began: float) -> None:
        """Poll until the service says SERVING; raise if its process has ended."""
        async with grpc.aio.insecure_channel(spec.health_address or spec.address, options=_RECONNECT_SOON) as channel:
            while not await is_serving(channel):
                self._raise_if_ended(spec.name)
                await asyncio.sleep(_POLL_SECONDS)
        self._raise_if_ended(spec.name)
        if self._on_serving is not None:
            self._on_serving(spec.name, time.monotonic() - began)

    def _raise_if_ended(self, *names: str) -> None:
        for name in names or self._children:
            child = self._children[name]
            if not child.is_running:
                last = "".join(f"\n  {line}" for line in list(child.lines)[-_LAST_LINES:])
                raise ServiceFailedError(f"{name} {child.ending}; its last lines:{last or ' none'}")


async def is_serving(channel: grpc.aio.Channel, *, timeout_seconds: float = _HEALTH_TIMEOUT_SECONDS) -> bool:
    """Whether the server behind the channel says SERVING within the time given."""
    check = health_pb2_grpc.HealthStub(channel).Check
    try:
        response = await check(health_pb2.HealthCheckRequest(), timeout=timeout_seconds)
    except grpc.aio.AioRpcError:
        return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


async def _cancel(tasks: Collection[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""What a node does with one pod: starts it, follows its probes, tells whether it is ready, and ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.cli.child_process import ChildProcess
from tests.k8s.rehearsal.plan import PodPlan
from tests.k8s.rendering import Document

_LAST_LINES = 15


class RehearsalError(Exception):
    """A pod did what would have Kubernetes restart or kill it; the message ends with its last log lines."""


class RehearsedPod:
    """One replica.

    Args:
        plan: its manifest.
        name: of the pod.
        address: its own.
        environment: its variables, and those that processes here need.
        on_ready: told whenever it becomes ready or ceases to be.
    """

    def __init__(
        self,
        plan: PodPlan,
        name: str,
        address: str,
        environment: Mapping[str, str],
        on_ready: Callable[[str, bool], None],
    ) -> None:
        self.name = name
        self.address = address
        self.is_ready = asyncio.Event()
        self.end_seconds = 0.0
        """From SIGTERM to its end."""
        self._plan = plan
        self._on_ready = on_ready
        self._child = ChildProcess(name, plan.command, environment=environment)
        self._probing: asyncio.Task[None] | None = None

    def port(self, name: str) -> int:
        """Number of one of its ports."""
        return self._plan.port(name)

    async def start(self) -> None:
        """Start its process, and follow its probes from then on."""
        await self._child.start()
        self._probing = asyncio.create_task(self._follow_probes(), name=f"probes of {self.name}")

    async def ready(self, seconds: float) -> None:
        """Wait until it is ready.

        Raises:
            RehearsalError: it is not, in so many seconds, or has ended, or is dead by its probes.
        """
        assert self._probing is not None
        ready = asyncio.create_task(self.is_ready.wait())
        try:
            await asyncio.wait({ready, self._probing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        self.check()
        if not self.is_ready.is_set():
            raise self._failed(f"is not ready after {seconds:g} s")

    def check(self) -> None:
        """
        Raises:
            RehearsalError: its probes say that it is dead, or it has ended.
        """
        if self._probing is not None and self._probing.done() and not self._probing.cancelled():
            self._probing.result()

    async def delete(self) -> None:
        """Take it out of DNS, pause as preStop says, send SIGTERM, and wait for the rest of the grace period.

        Raises:
            RehearsalError: it had to be killed, or ended with an error.
        """
        await self._end_probes()
        self._tell(is_ready=False)
        await asyncio.sleep(self._plan.pause_seconds)
        began = time.monotonic()
        await self._child.stop(self._plan.grace_seconds - self._plan.pause_seconds)
        self.end_seconds = time.monotonic() - began
        if self._child.ending != "ended with status 0":
            raise self._failed(f"{self._child.ending} {self.end_seconds:.1f} s after SIGTERM")

    async def close(self) -> None:
        """End it in any case."""
        await self._end_probes()
        await self._child.stop(0)

    async def _end_probes(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    async def _follow_probes(self) -> None:
        container = self._plan.container
        await self._until_started(container["startupProbe"])
        await asyncio.gather(self._follow_readiness(container["readinessProbe"]), self._stay_alive(container))

    async def _until_started(self, probe: Document) -> None:
        for _ in range(probe["failureThreshold"]):
            if await self._passes(probe):
                return
            await asyncio.sleep(probe["periodSeconds"])
        raise self._failed("does not start by its startupProbe")

    async def _follow_readiness(self, probe: Document) -> None:
        failures = 0
        while True:
            failures = 0 if await self._passes(probe) else failures + 1
            if failures == 0:
                self._tell(is_ready=True)
            elif failures >= probe.get("failureThreshold", 3):
                self._tell(is_ready=False)
            await asyncio.sleep(probe["periodSeconds"])

    async def _stay_alive(self, container: Document) -> None:
        probe = container["livenessProbe"]
        failures = 0
        while failures < probe["failureThreshold"]:
            failures = 0 if await self._passes(probe) else failures + 1
            await asyncio.sleep(probe["periodSeconds"])
        raise self._failed("is dead by its livenessProbe")

    async def _passes(self, probe: Document) -> bool:
        """As the kubelet asks: in plaintext, without a certificate, at the pod's own address."""
        if not self._child.is_running:
            raise self._failed(self._child.ending)
        address = f"{self.address}:{probe['grpc']['port']}"
        request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
        async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            try:
                response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=probe["timeoutSeconds"])
            except grpc.aio.AioRpcError:
                return False
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def _tell(self, *, is_ready: bool) -> None:
        if is_ready != self.is_ready.is_set():
            if is_ready:
                self.is_ready.set()
            else:
                self.is_ready.clear()
            self._on_ready(self.address, is_ready)

    def _failed(self, what: str) -> RehearsalError:
        last = "".join(f"\n  {line}" for line in list(self._child.lines)[-_LAST_LINES:])
        return RehearsalError(f"{self.name} {what}; its last lines:{last or ' none'}")

"""Targets, drafts and orchestrators as processes, with a relay on each way between two of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType

from typing_extensions import Self

from benchmarks.links.conditions import LinkConditions
from benchmarks.links.relay import Relay
from specdec.cli.ports import choose_ports
from tests.chaos.member import Member, Part

DRAIN_SECONDS = 5.0
"""That each process is given."""
_HOST = "127.0.0.1"
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OTEL_SDK_DISABLED": "true"}


@dataclass(frozen=True)
class SystemPlan:
    """What to start."""

    target_model: str
    draft_model: str | None
    """None: the default drafter of the embedded target."""
    num_targets: int
    num_drafts: int
    num_orchestrators: int = 2
    rtt_seconds: float = 0.0
    """Of each way between two processes, undisturbed."""
    orchestrator_arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Way:
    """A relay between a caller and a service."""

    name: str
    part: Part
    """What it leads to."""
    relay: Relay


class ChaosSystem:
    """Starts everything on entry, and ends it on exit; an asynchronous context manager.

    Args:
        plan: what to start.
    """

    def __init__(self, plan: SystemPlan) -> None:
        self._plan = plan
        self.conditions = LinkConditions(rtt_seconds=plan.rtt_seconds)
        """Of an undisturbed way."""
        self.members: list[Member] = []
        self.ways: list[Way] = []
        self.addresses: list[str] = []
        """Where clients call: the relays before the orchestrators."""
        self._stack = AsyncExitStack()

    def of(self, *parts: Part) -> list[Member]:
        """The processes of a kind."""
        return [member for member in self.members if member.part in parts]

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def undisturbed(self) -> Member:
        """A further orchestrator, without drafts or relays, at the first target; whoever asks for it closes it."""
        [port] = choose_ports([(_HOST, 0)])
        member = self._orchestrator("undisturbed", port, [self.of("target")[0].address], [])
        await member.start()
        return member

    async def _start(self) -> None:
        plan = self._plan
        numbers = (plan.num_targets, plan.num_drafts, plan.num_orchestrators)
        ports = choose_ports([(_HOST, 0)] * sum(numbers))
        services = [self._target(index, ports.pop()) for index in range(plan.num_targets)]
        services += [self._draft(index, ports.pop()) for index in range(plan.num_drafts)]
        await self._add(services)
        orchestrators = []
        for index in range(plan.num_orchestrators):
            name = f"orchestrator-{index}"
            relayed: dict[str, list[str]] = {"target": [], "draft": []}
            for service in services:
                relayed[service.part].append(await self._relay(f"{name} to {service.name}", service))
            orchestrator = self._orchestrator(name, ports.pop(), relayed["target"], relayed["draft"])
            orchestrators.append(orchestrator)
            self.addresses.append(await self._relay(f"clients to {name}", orchestrator))
        await self._add(orchestrators)

    async def _add(self, members: Sequence[Member]) -> None:
        self.members += members
        for member in members:
            self._stack.push_async_callback(member.close)
        await asyncio.gather(*(member.start() for member in members))

    async def _relay(self, name: str, service: Member) -> str:
        relay = await self._stack.enter_async_context(Relay(service.address, self.conditions))
        self.ways.append(Way(name, service.part, relay))
        return relay.address

    def _target(self, index: int, port: int) -> Member:
        # A row gives the same bits in any batch, so that no token hangs on who shared a pass.
        flags = [f"--model={self._plan.target_model}", "--num-threads=1", "--linear-kernel=invariant"]
        return _member(f"target-{index}", "target", "target_service", port, flags)

    def _draft(self, index: int, port: int) -> Member:
        model = self._plan.draft_model
        flags = ["--num-threads=1", *([] if model is None else ["--drafter=model", f"--model={model}"])]
        return _member(f"draft-{index}", "draft", "draft_service", port, flags)

    def _orchestrator(self, name: str, port: int, targets: Sequence[str], drafts: Sequence[str]) -> Member:
        flags = [f"--target={','.join(targets)}", f"--draft={','.join(drafts)}", *self._plan.orchestrator_arguments]
        return _member(name, "orchestrator", "orchestrator", port, flags)


def _member(name: str, part: Part, module: str, port: int, flags: Sequence[str]) -> Member:
    common = [f"--host={_HOST}", f"--port={port}", f"--drain-seconds={DRAIN_SECONDS:g}", "--log-level=info"]
    command = [sys.executable, "-m", module, *common, *flags]
    return Member(name, part, command, f"{_HOST}:{port}", _ENVIRONMENT)

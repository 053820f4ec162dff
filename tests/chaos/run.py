"""One run: the undisturbed outputs first, then the same requests while everything breaks."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from specdec.client import GenerationClient, GenerationResult, num_completions
from specdec.v1 import generation_pb2
from tests.chaos.faults import plan_faults
from tests.chaos.injecting import Injector
from tests.chaos.load import Load, Stream
from tests.chaos.member import Member, MemberFailedError, Part
from tests.chaos.models import save_models
from tests.chaos.report import ChaosReport, make_report
from tests.chaos.requests import make_requests
from tests.chaos.system import ChaosSystem, SystemPlan

TINY = "tiny"
_TOKENS_A_ROUND = 2.5
_LEFT_SECONDS = 10.0
"""Longest wait for sequences to be gone after the last request."""
_MAX_GROWTH_BYTES = 192 << 20
"""More than the caches of the tiny models (34 MiB), warm libraries and message buffers come to."""
_PARTS: tuple[Part, ...] = ("target", "draft", "orchestrator")


@dataclass(frozen=True)
class ChaosOptions:
    """What to run."""

    num_requests: int = 200
    num_faults: int = 100
    num_targets: int = 2
    num_drafts: int = 2
    num_orchestrators: int = 2
    num_clients: int = 8
    max_new_tokens: int = 160
    max_seconds: float = 600.0
    """After this no further fault begins."""
    seed: int = 0
    model: str = TINY
    """"tiny", or what a target service takes as a model; then the drafter is the default one."""
    rtt_seconds: float = 0.02
    """Of the ways between the processes."""
    parts: tuple[Part, ...] = _PARTS
    """That faults happen to, besides cancels by clients."""
    orchestrator_arguments: tuple[str, ...] = ()


async def run_chaos(options: ChaosOptions, say: Callable[[str], None]) -> ChaosReport:
    """Run it.

    Args:
        options: what to run.
        say: is told how far it is.

    Raises:
        MemberFailedError: a process ended by itself, did not come back, or did not end when it was asked to.
    """
    is_tiny = options.model == TINY
    requests = make_requests(options.num_requests, options.seed, options.max_new_tokens, is_tiny=is_tiny)
    async with AsyncExitStack() as stack:
        target, draft = options.model, None
        if is_tiny:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            target, draft = map(str, save_models(directory))
        plan = SystemPlan(
            target,
            draft,
            options.num_targets,
            options.num_drafts,
            options.num_orchestrators,
            options.rtt_seconds,
            options.orchestrator_arguments,
        )
        system = await stack.enter_async_context(ChaosSystem(plan))
        say(f"{len(system.members)} processes and {len(system.ways)} relays are up; seed {options.seed}")
        expected, undisturbed = await _undisturbed(system, requests, options)
        num_tokens = sum(len(result.token_ids) for results in expected for result in results)
        say(f"undisturbed: {num_tokens} tokens")
        rounds_between = num_tokens / _TOKENS_A_ROUND / max(1, options.num_faults)
        faults = plan_faults(
            options.num_faults,
            options.seed,
            [part for part in options.parts if system.of(part)],
            rounds_between,
            num_targets=options.num_targets,
        )
        load = Load(system.addresses, requests, expected, options.num_clients)
        injector = Injector(system, load, faults)
        began = time.monotonic()
        await _under_faults(system, load, injector, began + options.max_seconds, say)
        seconds = time.monotonic() - began
        num_left = await _left(system)
        for member in system.members:
            member.note_growth()
        growth: dict[str, int] = {
            part: max(max(each.growth_bytes) for each in system.of(part)) for part in _PARTS if system.of(part)
        }
        return make_report(
            seed=options.seed,
            seconds=seconds,
            streams=load.streams,
            undisturbed=undisturbed,
            injected=injector.injected,
            num_planned_faults=len(faults),
            num_left=num_left,
            growth_bytes=growth,
            problems=_problems(system.members, growth if is_tiny else {}),
        )


async def _undisturbed(
    system: ChaosSystem, requests: list[generation_pb2.GenerateRequest], options: ChaosOptions
) -> tuple[list[list[GenerationResult]], list[Stream]]:
    """Every request by plain decoding at one target, over no relay."""
    plain = []
    for request in requests:
        without = generation_pb2.GenerateRequest()
        without.CopyFrom(request)
        without.num_draft_tokens = 0
        plain.append(without)
    orchestrator = await system.undisturbed()
    results: dict[int, list[GenerationResult]] = {}
    streams: list[Stream] = []
    try:
        async with GenerationClient(orchestrator.address) as client:
            numbers = iter(range(len(plain)))

            async def work() -> None:
                for number in numbers:
                    stream = Stream(number, time.monotonic())
                    streams.append(stream)
                    collected = [GenerationResult(completion=index) for index in range(num_completions(plain[number]))]
                    async for response in client.generate(plain[number]):
                        if response.HasField("delta"):
                            stream.arrivals.append(time.monotonic())
                        for result in collected:
                            result.add(response)
                    results[number] = collected

            await asyncio.gather(*(work() for _ in range(options.num_clients)))
    finally:
        await orchestrator.close()
    return [results[number] for number in range(len(plain))], streams


async def _under_faults(
    system: ChaosSystem, load: Load, injector: Injector, deadline: float, say: Callable[[str], None]
) -> None:
    """The load, until all requests were sent and all faults are over."""
    injecting = asyncio.create_task(injector.run())
    watching = asyncio.create_task(_watch(system, load, injector, say))

    def is_enough() -> bool:
        return injecting.done() or time.monotonic() > deadline

    loading = asyncio.create_task(load.run(is_enough))
    tasks = {injecting, watching, loading}
    try:
        while not loading.done() and time.monotonic() < deadline:
            waited = {task for task in tasks if not task.done()}
            done, _ = await asyncio.wait(
                waited, timeout=max(0.0, deadline - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        if not loading.done():
            injector.stop()
            await injecting
            await loading
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(system: ChaosSystem, load: Load, injector: Injector, say: Callable[[str], None]) -> None:
    """Notice a process that ended by itself, and say how far it is."""
    began = time.monotonic()
    for second in range(1 << 30):
        await asyncio.sleep(1.0)
        for member in system.members:
            member.check_running()
        if second % 10 == 9:
            over = sum(stream.is_over for stream in load.streams)
            failed = sum(bool(stream.failure or stream.difference) for stream in load.streams)
            say(
                f"{time.monotonic() - began:.0f} s: {over} requests over, {failed} of them not as they should be,"
                f" {len(injector.injected)} faults"
            )


async def _left(system: ChaosSystem) -> dict[str, int]:
    """Sequences that services hold, once they have had time to drop those of lost orchestrators."""
    deadline = time.monotonic() + _LEFT_SECONDS
    while True:
        services = system.of("target", "draft")
        left = {service.name: await service.num_sequences() for service in services}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.2)


def _problems(members: list[Member], growth: dict[str, int]) -> list[str]:
    problems = [f"{member.name} logged: {line}" for member in members for line in member.errors]
    problems += [
        f"a process of the {part} grew by {value / 2**20:.0f} MiB"
        for part, value in growth.items()
        if value > _MAX_GROWTH_BYTES
    ]
    return problems


__all__ = ["TINY", "ChaosOptions", "MemberFailedError", "run_chaos"]

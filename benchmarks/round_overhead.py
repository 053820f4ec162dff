"""What a round takes besides drafting and verifying, for one client on loopback, beside what gRPC alone takes.

    python -m benchmarks.round_overhead [-k 3 --repeats 4 --max-new-tokens 96 --json-out FILE]

Real services with real models, one CPU for the target and one for all else, plain rounds (`--pipeline off`). Medians
over the rounds, by what they report:

- network: what the draft service, or the target, does not account for of the wait for it;
- queue: from when a service has read a command until it begins to compute;
- orchestrator: the rest of the round.

The baseline is a stream of gRPC in Python that does nothing but send every message back, between two processes on the
same CPUs, after pauses as long as a draft step, a draft, and a pass: processes that slept meanwhile find their code out
of the caches, and their processors asleep. A round has two such round trips, so it cannot take less than two.

The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.deployment.placement import pinned_placement
from benchmarks.deployment.services import DeploymentPlan
from benchmarks.links.stream_echo import round_trips
from benchmarks.measuring.latency_cell import (
    draft_network_microseconds,
    target_network_microseconds,
    waiting_microseconds,
)
from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.prompts import read_prompts, spread
from benchmarks.measuring.running import run_or_exit
from specdec.cli.ports import choose_ports
from specdec.cli.service_group import ServiceGroup, ServiceSpec
from specdec.cli.three_services import ThreeServices
from specdec.client import GenerationClient
from specdec.v1 import generation_pb2, sampling_pb2

_PROMPTS = Path(__file__).parent / "prompts.jsonl"
_PAUSES_SECONDS = (0.0, 0.005, 0.015, 0.03)
_DRAIN_SECONDS = 2.0

Figures = dict[str, float]


async def measure_rounds(
    plan: DeploymentPlan, num_draft_tokens: int, repeats: int, max_new_tokens: int
) -> list[generation_pb2.RoundReport]:
    """Rounds of some prompts, one after the other; the first prompt warms up."""
    prompts = spread(read_prompts(_PROMPTS), repeats + 1)
    *services, orchestrator = plan.deployment("split").specs
    rounds: list[generation_pb2.RoundReport] = []
    async with (
        ServiceGroup([*services, orchestrator], drain_seconds=_DRAIN_SECONDS),
        GenerationClient(orchestrator.address) as client,
    ):
        for number, prompt in enumerate(prompts):
            request = generation_pb2.GenerateRequest(
                sampling=sampling_pb2.SamplingParams(temperature=0.0, ignore_eos=True),
                max_new_tokens=max_new_tokens,
                num_draft_tokens=num_draft_tokens,
            )
            request.chat.messages.add(role="user", content=prompt.text)
            result = await client.collect(request)
            if number:
                rounds += [report for report in result.rounds if report.num_draft_tokens or not num_draft_tokens]
    return rounds


async def measure_echo(cpu: frozenset[int], num_probes: int) -> dict[float, float]:
    """Median round trip by the pause before it, in seconds; the echo is on a CPU of its own."""
    host = "127.0.0.1"
    (port,) = choose_ports([(host, 0)])
    address = f"{host}:{port}"
    numbers = ",".join(map(str, sorted(cpu or os.sched_getaffinity(0))))
    command = (*(sys.executable, "-m", "benchmarks.deployment.pinned", numbers), *_echo_command(address))
    async with ServiceGroup([ServiceSpec("echo", command, address)], drain_seconds=_DRAIN_SECONDS):
        return {pause: statistics.median(await round_trips(address, num_probes, pause)) for pause in _PAUSES_SECONDS}


def _echo_command(address: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "benchmarks.links.stream_echo", address)


def figures(rounds: Sequence[generation_pb2.RoundReport]) -> Figures:
    """Medians in seconds; there is at least one round."""
    parts: dict[str, list[float]] = {
        "draft_network": [draft_network_microseconds(report) for report in rounds],
        "draft_queue": [report.draft.queue_microseconds for report in rounds],
        "target_network": [target_network_microseconds(report) for report in rounds],
        "target_queue": [report.verify.queue_microseconds for report in rounds],
        "orchestrator": [waiting_microseconds(report) for report in rounds],
    }
    besides = map(sum, zip(*parts.values(), strict=True))
    return {
        "num_rounds": len(rounds),
        "round_seconds": _median(report.wall_microseconds for report in rounds),
        "draft_seconds": _median(report.draft.compute_microseconds for report in rounds),
        "verify_seconds": _median(report.verify.compute_microseconds for report in rounds),
        **{f"{name}_seconds": _median(values) for name, values in parts.items()},
        "overhead_seconds": _median(besides),
    }


def _median(microseconds: Iterable[float]) -> float:
    return statistics.median(microseconds) / 1e6


def main(
    num_draft_tokens: Annotated[
        int, typer.Option("--num-draft-tokens", "-k", min=0, help="Draft tokens of a window (K).")
    ] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Prompts.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="New tokens for each.")] = 96,
    num_probes: Annotated[int, typer.Option(min=3, help="Round trips of the baseline after each pause.")] = 150,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
) -> None:
    """Measure what a round takes besides drafting and verifying."""

    async def measure() -> tuple[Figures, dict[float, float]]:
        async with AsyncExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specdec-round-overhead-")))
            placement = pinned_placement()
            services = ThreeServices(
                drafter="model",
                num_threads=1,
                drain_seconds=_DRAIN_SECONDS,
                orchestrator_arguments=("--pipeline=off",),
                environment={"OMP_NUM_THREADS": "1"},
            )
            if placement.rest:
                os.sched_setaffinity(0, placement.rest)
            echo = await measure_echo(placement.target, num_probes)
            plan = DeploymentPlan(services, directory, placement)
            return figures(await measure_rounds(plan, num_draft_tokens, repeats, max_new_tokens)), echo

    found, echo = run_or_exit("round_overhead", measure())
    table = Table("a round", "ms, median", box=box.SIMPLE_HEAD, title=f"one client, K = {num_draft_tokens}")
    for name, seconds in found.items():
        if name != "num_rounds":
            table.add_row(name.removesuffix("_seconds").replace("_", " "), f"{1e3 * seconds:.2f}")
    for pause, seconds in echo.items():
        table.add_row(f"gRPC alone, there and back after {1e3 * pause:g} ms", f"{1e3 * seconds:.2f}")
    Console(highlight=False, soft_wrap=True).print(table)
    line = json.dumps(
        {
            "benchmark": "round_overhead",
            "num_draft_tokens": num_draft_tokens,
            "machine": machine_facts(),
            "round": found,
            "echo": [{"pause_seconds": pause, "rtt_seconds": seconds} for pause, seconds in echo.items()],
        }
    )
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    typer.run(main)

"""What round trip the relay really makes, for each that it is asked for.

    python -m benchmarks.rtt [--rtt-ms 0,0.5,5,20,80 --jitter-ms 0 --num-probes 200 --json-out FILE]

An echo of 64 bytes over a relay in a process of its own, and directly, in turns. "Added" is the difference between the
medians over the relay and directly. The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.links.conditions import LinkConditions
from benchmarks.links.echo_probe import EchoProbe, EchoServer
from benchmarks.links.relay_process import RelayFailedError, RelayProcess
from benchmarks.measuring.machine import machine_facts

_PAUSE_SECONDS = 0.002
"""Between probes, so that each finds everybody asleep, as the messages of a round do."""


async def measure(
    rtts: Sequence[float], jitter_seconds: float, num_probes: int
) -> tuple[list[float], dict[float, list[float]]]:
    """Round trips in seconds: directly, and through a relay for each round trip that is asked for, in turns.

    Raises:
        RelayFailedError: a relay did not start.
    """
    async with AsyncExitStack() as stack:
        server = stack.enter_context(EchoServer())
        direct = stack.enter_context(EchoProbe(server.address))
        probes = {}
        for rtt in rtts:
            conditions = LinkConditions(rtt_seconds=rtt, jitter_seconds=min(jitter_seconds, rtt / 2))
            relay = await stack.enter_async_context(RelayProcess(server.address, conditions))
            probes[rtt] = stack.enter_context(EchoProbe(relay.address))
        return await asyncio.to_thread(_in_turns, direct, probes, num_probes)


def _in_turns(
    direct: EchoProbe, probes: Mapping[float, EchoProbe], num_probes: int
) -> tuple[list[float], dict[float, list[float]]]:
    for probe in (direct, *probes.values()):
        probe.rtt_seconds()  # The first one also waits for the relay to connect.
    directly: list[float] = []
    relayed: dict[float, list[float]] = {rtt: [] for rtt in probes}
    for _ in range(num_probes):
        time.sleep(_PAUSE_SECONDS)
        directly.append(direct.rtt_seconds())
        for rtt, probe in probes.items():
            time.sleep(_PAUSE_SECONDS)
            relayed[rtt].append(probe.rtt_seconds())
    return directly, relayed


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile, in seconds."""
    # Of few probes the last percentile is the largest.
    return {
        "p50_seconds": statistics.median(seconds),
        "p99_seconds": sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))],
    }


def main(
    rtt_ms: Annotated[str, typer.Option(help="Round trips to ask for.")] = "0,0.5,5,20,80",
    jitter_ms: Annotated[float, typer.Option(min=0, help="Each way; at most half of each round trip.")] = 0.0,
    num_probes: Annotated[int, typer.Option(min=1, help="Of each.")] = 200,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
) -> None:
    """Measure the relay."""
    try:
        rtts = [float(part) / 1e3 for part in rtt_ms.split(",")]
        if min(rtts) < 0:
            raise ValueError("a round trip takes no negative time")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        directly, relayed = asyncio.run(measure(list(dict.fromkeys(rtts)), jitter_ms / 1e3, num_probes))
    except (RelayFailedError, OSError) as error:
        typer.echo(f"benchmarks.rtt: {error}", err=True)
        raise typer.Exit(1) from error
    baseline = summary(directly)
    cells = [{"asked_rtt_seconds": rtt, **summary(seconds)} for rtt, seconds in relayed.items()]
    table = Table(box=box.SIMPLE_HEAD, padding=0, title="round trips, ms")
    for name in ("asked for", "p50", "p99", "added"):
        table.add_column(name, justify="right")
    table.add_row("directly", *(f"{1e3 * value:.3f}" for value in baseline.values()), "")
    for cell in cells:
        added = cell["p50_seconds"] - baseline["p50_seconds"]
        table.add_row(
            f"{1e3 * cell['asked_rtt_seconds']:g}",
            *(f"{1e3 * value:.3f}" for value in (cell["p50_seconds"], cell["p99_seconds"], added)),
        )
    Console(highlight=False).print(table)
    line = json.dumps(
        {
            "benchmark": "rtt",
            "jitter_seconds": jitter_ms / 1e3,
            "num_probes": num_probes,
            "machine": machine_facts(),
            "direct": baseline,
            "cells": cells,
        }
    )
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    typer.run(main)

"""What a shared prefix saves, and what a long prompt costs those who are running.

    python -m benchmarks.prefill [--repeats 3 --prefix-tokens 1000 --long-tokens 3000 --running 4 --json-out FILE]

The real services with the target alone (K = 0), one process each, at temperature 0, with prompts of made-up token ids.

- prefix: time to the first token of a request whose prompt was never seen, and of a second one that begins with the
  same tokens. The ratio says what the prefix cache saves.
- arrival: the waits between the tokens of requests that run side by side, first alone and then while a long prompt is
  prefilled between them. p99 over median is of all these waits; the other ratio is the stricter one.

The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.measuring.machine import machine_facts
from specdec.cli.service_group import ServiceFailedError, ServiceGroup
from specdec.cli.three_services import ThreeServices
from specdec.client import GenerationClient
from specdec.v1 import generation_pb2, sampling_pb2

_OWN_TOKENS = 8
"""Behind a shared prefix."""
_SETTLED = 12
"""Waits of each running request before the long prompt arrives, and after its first token."""
_TIMEOUT_SECONDS = 1800.0

Figures = dict[str, Any]


def made_up(source: random.Random, count: int) -> list[int]:
    """Token ids that any vocabulary has."""
    return [source.randrange(10, 300) for _ in range(count)]


def make_request(token_ids: list[int], max_new_tokens: int) -> generation_pb2.GenerateRequest:
    """Plain decoding to the last token."""
    return generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=token_ids),
        sampling=sampling_pb2.SamplingParams(temperature=0.0, ignore_eos=True),
        max_new_tokens=max_new_tokens,
        num_draft_tokens=0,
    )


async def first_token(client: GenerationClient, token_ids: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens of the prompt were found in the cache."""
    began = time.perf_counter()
    result = await client.collect(make_request(token_ids, 1))
    seconds = time.perf_counter() - began
    return seconds, result.finished.usage.num_cached_tokens if result.finished else 0


async def measure_prefix(client: GenerationClient, source: random.Random, num_tokens: int, repeats: int) -> Figures:
    """First and second request with one prefix, a new one each time."""
    firsts, seconds, found = [], [], []
    for _ in range(repeats):
        prefix = made_up(source, num_tokens)
        firsts.append((await first_token(client, [*prefix, *made_up(source, _OWN_TOKENS)]))[0])
        took, num_cached = await first_token(client, [*prefix, *made_up(source, _OWN_TOKENS)])
        seconds.append(took)
        found.append(num_cached)
    return {
        "prefix_tokens": num_tokens,
        "first_ttft_seconds": statistics.median(firsts),
        "second_ttft_seconds": statistics.median(seconds),
        "ratio": statistics.median(second / first for first, second in zip(firsts, seconds, strict=True)),
        "num_cached_tokens": min(found),
    }


class Waits:
    """When tokens of running requests came."""

    def __init__(self) -> None:
        self.times: list[list[float]] = []

    async def run(self, client: GenerationClient, token_ids: list[int]) -> None:
        """One request, until it is cancelled."""
        times: list[float] = []
        self.times.append(times)
        async for response in client.generate(make_request(token_ids, 4000)):
            if response.HasField("delta"):
                times.append(time.perf_counter())  # noqa: PERF401 - read meanwhile

    def between(self, start: float, end: float) -> list[float]:
        """Waits that ended in a span of time, in seconds."""
        return [later - earlier for times in self.times for earlier, later in pairwise(times) if start <= later <= end]

    async def settle(self) -> float:
        """Until each request has had some more tokens; returns when that was."""
        goals = [len(times) + _SETTLED for times in self.times]
        while any(len(times) < goal for times, goal in zip(self.times, goals, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return time.perf_counter()


async def measure_arrival(
    client: GenerationClient, source: random.Random, num_running: int, num_tokens: int
) -> Figures:
    """Waits between tokens before, and from the arrival of a long prompt until a little behind its first token."""
    waits = Waits()
    tasks = [asyncio.create_task(waits.run(client, made_up(source, 20))) for _ in range(num_running)]
    try:
        while len(waits.times) < num_running or not all(waits.times):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        began = await waits.settle()
        arrived = await waits.settle()
        ttft_seconds, _ = await first_token(client, made_up(source, num_tokens))
        first = time.perf_counter()
        ended = await waits.settle()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    alone, beside = waits.between(began, arrived), waits.between(arrived, first)
    everything = waits.between(began, ended)
    return {
        "running": num_running,
        "long_tokens": num_tokens,
        "long_ttft_seconds": ttft_seconds,
        "alone_median_seconds": statistics.median(alone),
        "beside_median_seconds": statistics.median(beside),
        "beside_p99_seconds": _percentile(beside, 0.99),
        "median_seconds": statistics.median(everything),
        "p99_seconds": _percentile(everything, 0.99),
        "p99_over_median": _percentile(everything, 0.99) / statistics.median(everything),
        "beside_p99_over_alone_median": _percentile(beside, 0.99) / statistics.median(alone),
        "num_waits": len(everything),
    }


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1]


async def measure(
    services: ThreeServices, *, repeats: int, prefix_tokens: int, long_tokens: int, running: int
) -> Figures:
    """Both, on services that are started for it."""
    source = random.Random(0)
    async with (
        ServiceGroup(services.specs(), drain_seconds=2) as group,
        GenerationClient(group.address, timeout_seconds=_TIMEOUT_SECONDS) as client,
    ):
        await first_token(client, made_up(source, 64))
        figures: Figures = {}
        if prefix_tokens:
            figures["prefix"] = await measure_prefix(client, source, prefix_tokens, repeats)
        if long_tokens:
            figures["arrival"] = await measure_arrival(client, source, running, long_tokens)
    return figures


def main(
    model: Annotated[str | None, typer.Option(help="Target model; by default the embedded one.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N or auto.")] = None,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of the target.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Prefixes; medians are shown.")] = 3,
    prefix_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of a shared prefix; 0: leave this part out.")
    ] = 1000,
    long_tokens: Annotated[int, typer.Option(min=0, help="Tokens of the long prompt; 0: leave this part out.")] = 3000,
    running: Annotated[int, typer.Option(min=1, help="Requests that run beside it.")] = 4,
    prefill_chunk_rows: Annotated[int, typer.Option(min=0, help="As the target's flag.")] = 0,
    json_out: Annotated[Path | None, typer.Option(help="Write the result here too.")] = None,
) -> None:
    """Measure what a shared prefix saves and what a long prompt costs."""
    services = ThreeServices(
        model=model,
        drafter="none",
        device=device,
        num_threads=num_threads,
        drain_seconds=2,
        target_arguments=(f"--prefill-chunk-rows={prefill_chunk_rows}",),
        orchestrator_arguments=(f"--round-timeout-seconds={_TIMEOUT_SECONDS}",),
    )
    try:
        figures = asyncio.run(
            measure(services, repeats=repeats, prefix_tokens=prefix_tokens, long_tokens=long_tokens, running=running)
        )
    except ServiceFailedError as failure:
        raise SystemExit(f"benchmarks.prefill: {failure}") from failure
    console = Console(highlight=False)
    for name, part in figures.items():
        table = Table(name, "")
        for label, value in part.items():
            table.add_row(label.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
        console.print(table)
    result = {"benchmark": "prefill", "num_threads": num_threads, "machine": machine_facts(), **figures}
    line = json.dumps(result)
    if json_out is not None:
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    typer.run(main)

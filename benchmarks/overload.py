"""What becomes of requests when several times as many arrive as can be served.

    python -m benchmarks.overload [--limit 8 --times 4 --seconds 60 --model NAME --json-out FILE]

The services are real processes and admit `--limit` requests at once. First as many clients as that send one request
after the other: the capacity. Then requests arrive at `--times` the rate that was finished, at random and whatever the
services do. Reported: the time a token of admitted requests in both phases, how fast the rest is refused, whether each
was told when to try again, and the memory of each process before and after. The last line of standard output is the
result as JSON; the exit status is 1 if a bound was missed.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.measuring.closed_loop import ClosedLoop, RequestRecord
from benchmarks.measuring.load_bench import RequestMaker
from benchmarks.measuring.load_figures import median, percentile
from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.open_loop import Attempt, OpenLoop
from benchmarks.measuring.prompts import read_prompts
from benchmarks.measuring.running import run_or_exit
from specdec.cli.service_group import ServiceGroup
from specdec.cli.three_services import ThreeServices
from specdec.client import GenerationClient
from specdec.serving.channel import open_channel
from specdec.settings import DEFAULT_MODEL
from specdec.v1 import generation_pb2_grpc

_PROMPTS = Path(__file__).parent / "prompts.jsonl"
_DRAIN_SECONDS = 2.0
_MAX_MESSAGE_BYTES = 16 << 20
MOST_TPOT_RATIO = 1.5
MOST_REFUSAL_SECONDS = 0.1
MOST_GROWTH = 1.05
"""Of a process's memory under overload; what capacity takes, full caches and all, is there before."""


def figures(
    capacity: Sequence[RequestRecord],
    seconds: float,
    attempts: Sequence[Attempt],
    memory: Sequence[dict[str, int]],
) -> dict[str, Any]:
    """What was found.

    Args:
        capacity: requests that were finished in the first phase.
        seconds: that it lasted.
        attempts: requests of the second.
        memory: resident bytes of each process after the first phase and after the second.
    """
    refused = [attempt for attempt in attempts if attempt.code is not None]
    before, after = memory
    tpot = median(record.tpot_seconds for record in capacity)
    overloaded = median(attempt.tpot_seconds for attempt in attempts)
    return {
        "capacity": {
            "finished_per_second": len(capacity) / seconds,
            "tpot_p50_seconds": tpot,
        },
        "overload": {
            "sent": len(attempts),
            "finished": sum(attempt.finished for attempt in attempts),
            "tpot_p50_seconds": overloaded,
            "refused": len(refused),
            "refused_by_code": dict(Counter(attempt.code.name for attempt in refused if attempt.code is not None)),
            "refused_without_retry_delay": sum(attempt.retry_seconds is None for attempt in refused),
            "refusal_p50_seconds": percentile((attempt.refused_seconds or 0.0 for attempt in refused), 0.5),
            "refusal_p99_seconds": percentile((attempt.refused_seconds or 0.0 for attempt in refused), 0.99),
        },
        "tpot_ratio": overloaded / tpot if tpot and overloaded else None,
        "memory_growth": {name: after[name] / before[name] for name in before},
    }


def misses(found: dict[str, Any]) -> list[str]:
    """Which bounds were missed, in words."""
    overload = found["overload"]
    missed = []
    if not overload["finished"] or not overload["refused"]:
        missed.append("there was no overload: nothing was refused, or nothing finished")
    elif (overload["refusal_p99_seconds"] or 0.0) > MOST_REFUSAL_SECONDS:
        missed.append(f"refusals took more than {MOST_REFUSAL_SECONDS:g} s")
    if overload["refused_without_retry_delay"] or set(overload["refused_by_code"]) - {"RESOURCE_EXHAUSTED"}:
        missed.append("a refusal was not RESOURCE_EXHAUSTED with a retry delay")
    if (found["tpot_ratio"] or 0.0) > MOST_TPOT_RATIO:
        missed.append(f"admitted requests took more than {MOST_TPOT_RATIO:g} times as long a token")
    grown = [name for name, growth in found["memory_growth"].items() if growth > MOST_GROWTH]
    if grown:
        missed.append(f"memory grew: {', '.join(grown)}")
    return missed


async def measure(
    services: ThreeServices, limit: int, times: float, seconds: float, capacity_seconds: float, max_new_tokens: int
) -> dict[str, Any]:
    """Both phases."""
    prompts = read_prompts(_PROMPTS)
    make_request = RequestMaker(
        prompts, max_new_tokens=max_new_tokens, temperature=0.0, seed=0, ignores_stops=True, is_cold=True
    )
    async with (
        ServiceGroup(services.specs(), drain_seconds=_DRAIN_SECONDS) as group,
        GenerationClient(group.address) as client,
        open_channel(group.address, max_message_bytes=_MAX_MESSAGE_BYTES) as channel,
    ):
        pids = {spec.name: group[spec.name].pid for spec in group.specs}
        async with ClosedLoop(client, make_request, len(prompts)).load(limit, None) as load:
            await load.reach_all()
            began = time.perf_counter()
            await load.go_on(capacity_seconds)
            lasted = time.perf_counter() - began
            capacity = [record for record in load.records if (record.finished or 0.0) > began]
        memory = [_resident_bytes(pids)]
        if not capacity:
            raise TooShortError
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        loop = OpenLoop(stub, lambda number: make_request(number % len(prompts), None))
        await loop.run(times * len(capacity) / lasted, seconds)
        memory.append(_resident_bytes(pids))
        return figures(capacity, lasted, loop.attempts, memory)


class TooShortError(Exception):
    """Nothing was finished in the first phase."""

    def __init__(self) -> None:
        super().__init__("no request was finished while the capacity was measured; take a longer --capacity-seconds")


def main(
    limit: Annotated[int, typer.Option(min=1, help="Requests that are admitted at once.")] = 8,
    times: Annotated[float, typer.Option(min=1, help="How many times the capacity arrives.")] = 4.0,
    seconds: Annotated[float, typer.Option(min=1, help="Of the overload.")] = 60.0,
    capacity_seconds: Annotated[float, typer.Option(min=1, help="For which the capacity is measured.")] = 20.0,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="New tokens of each request.")] = 48,
    model: Annotated[str, typer.Option(help="Target model.")] = DEFAULT_MODEL,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass on CPU.")] = 1,
    kv_cache_memory: Annotated[
        str, typer.Option(help="Of target and draft each: little enough to be full before the overload begins.")
    ] = "128MiB",
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
) -> None:
    """Measure the services under overload."""
    services = ThreeServices(
        model=model,
        num_threads=num_threads,
        drain_seconds=_DRAIN_SECONDS,
        target_arguments=(f"--kv-cache-memory={kv_cache_memory}",),
        draft_arguments=(f"--kv-cache-memory={kv_cache_memory}",),
        orchestrator_arguments=(f"--max-concurrent-requests={limit}",),
        environment={"OMP_NUM_THREADS": str(num_threads)},
    )
    found = run_or_exit(
        "overload", measure(services, limit, times, seconds, capacity_seconds, max_new_tokens), TooShortError
    )
    missed = misses(found)
    settings = {
        "limit": limit,
        "times": times,
        "seconds": seconds,
        "max_new_tokens": max_new_tokens,
        "model": model,
        "kv_cache_memory": kv_cache_memory,
    }
    result = {"benchmark": "overload", "settings": settings, "machine": machine_facts(), **found, "missed": missed}
    Console(highlight=False, soft_wrap=True).print(_table(found, times))
    for sentence in missed:
        typer.echo(f"benchmarks.overload: {sentence}", err=True)
    line = json.dumps(result)
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)
    raise typer.Exit(1 if missed else 0)


def _table(found: dict[str, Any], times: float) -> Table:
    capacity, overload = found["capacity"], found["overload"]
    table = Table("what", "capacity", f"{times:g} times as much")
    table.add_row("sent", "", f"{overload['sent']}")
    table.add_row("finished", f"{capacity['finished_per_second']:.2f} a second", f"{overload['finished']}")
    table.add_row("time a token, median", _ms(capacity["tpot_p50_seconds"]), _ms(overload["tpot_p50_seconds"]))
    table.add_row("refused", "", f"{overload['refused']}")
    table.add_row("refused within, median", "", _ms(overload["refusal_p50_seconds"]))
    table.add_row("refused within, p99", "", _ms(overload["refusal_p99_seconds"]))
    table.add_row("refused without a time to try again", "", f"{overload['refused_without_retry_delay']}")
    for name, growth in found["memory_growth"].items():
        table.add_row(f"memory, {name}", "1", f"{growth:.3f}")
    return table


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{1000 * seconds:.1f} ms"


def _resident_bytes(pids: dict[str, int]) -> dict[str, int]:
    return {name: psutil.Process(pid).memory_info().rss for name, pid in pids.items()}


if __name__ == "__main__":
    typer.run(main)

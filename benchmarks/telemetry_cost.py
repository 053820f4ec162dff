"""What telemetry costs: the same load with it off, with every round traced, and with a collector that is not there.

    python -m benchmarks.telemetry_cost [--clients 4 --repeats 5 --duration-seconds 8 --json-out FILE]

Three deployments of real processes run at the same time, one for each side, and are loaded in turns; the others are
idle meanwhile. Ratios are of tokens per second, and of CPU time a token of the three services together, within a
turn, and medians over turns. The collector (`benchmarks.deployment.otlp_sink`) shares this machine's processors; in a
deployment it would not. The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.deployment.services import DeploymentPlan
from benchmarks.measuring.load_bench import CLIENTS, RequestMaker, load_bench
from benchmarks.measuring.load_figures import LoadWindow, median
from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.output_check import OutputCheck
from benchmarks.measuring.prompts import read_prompts
from benchmarks.measuring.running import run_or_exit
from specdec.cli.three_services import ThreeServices
from specdec.settings import DEFAULT_MODEL

_PROMPTS = Path(__file__).parent / "prompts.jsonl"
_NOWHERE = "127.0.0.1:9"
_DRAIN_SECONDS = 2.0
OFF, TRACED, NO_COLLECTOR = "off", "traced", "no collector"
SIDES = (OFF, TRACED, NO_COLLECTOR)

Rates = dict[str, list[tuple[float, float]]]
"""By side, for each turn: tokens per second, and CPU seconds a token."""


def variables(collector: str) -> dict[str, str]:
    """That turn telemetry on, all of it, towards a collector."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector}", "OTEL_TRACES_SAMPLER": "always_on"}


def summary(rates: Rates) -> dict[str, Any]:
    """Medians, and ratios to the side without telemetry."""
    found: dict[str, Any] = {}
    for side, turns in rates.items():
        pairs = zip(turns, rates[OFF], strict=True)
        ratios = [(rate / off_rate, cpu / off_cpu) for (rate, cpu), (off_rate, off_cpu) in pairs]
        found[side] = {
            "tokens_per_second": median(rate for rate, _ in turns),
            "cpu_seconds_per_token": median(cpu for _, cpu in turns),
            "throughput_ratio": median(ratio for ratio, _ in ratios),
            "cpu_ratio": median(ratio for _, ratio in ratios),
        }
    return found


def rate(window: LoadWindow) -> tuple[float, float]:
    """Tokens per second in a window, and CPU seconds of the services a token."""
    num_tokens = sum(
        delta.num_tokens
        for record in window.records
        for delta in record.deltas
        if window.began <= delta.arrived < window.ended
    )
    cpu_seconds = sum(seconds for name, seconds in window.cpu_seconds.items() if name != CLIENTS)
    return num_tokens / (window.ended - window.began), cpu_seconds / max(num_tokens, 1)


@asynccontextmanager
async def collector() -> AsyncIterator[str]:
    """A collector in a process of its own; gives its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.deployment.otlp_sink"), stdout=subprocess.PIPE
    )
    try:
        lines = process.stdout
        if lines is None:
            raise RuntimeError("the collector was started without its output")
        yield (await asyncio.wait_for(lines.readline(), 30)).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def measure(
    services: dict[str, ThreeServices], clients: int, num_draft_tokens: int | None, repeats: int, seconds: float
) -> Rates:
    """Load each side in turn."""
    prompts = read_prompts(_PROMPTS)
    make_request = RequestMaker(prompts, max_new_tokens=96, temperature=0.0, seed=0, ignores_stops=True, is_cold=False)
    outputs = OutputCheck()
    rates: Rates = {side: [] for side in services}
    async with AsyncExitStack() as running:
        benches = {}
        for side, of_side in services.items():
            directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="specdec-telemetry-")))
            deployment = DeploymentPlan(of_side, directory).deployment("split")
            benches[side] = await running.enter_async_context(
                load_bench(deployment, make_request, len(prompts), outputs)
            )
        for _ in range(repeats):
            for side, bench in benches.items():
                window = await bench.measure(clients, num_draft_tokens, warm_up_seconds=1.0, duration_seconds=seconds)
                rates[side].append(rate(window))
    return rates


def main(
    clients: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 4,
    num_draft_tokens: Annotated[
        int, typer.Option("--num-draft-tokens", "-k", min=0, help="Draft tokens a round (K).")
    ] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Turns.")] = 5,
    duration_seconds: Annotated[float, typer.Option(min=0.5, help="Of each side in each turn.")] = 8.0,
    model: Annotated[str, typer.Option(help="Target model.")] = DEFAULT_MODEL,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
) -> None:
    """Measure what telemetry costs."""

    def services(of_side: dict[str, str]) -> ThreeServices:
        return ThreeServices(
            model=model,
            num_threads=1,
            drain_seconds=_DRAIN_SECONDS,
            environment={"OMP_NUM_THREADS": "1", **of_side},
        )

    async def measure_all() -> Rates:
        async with collector() as address:
            sides = {OFF: {}, TRACED: variables(address), NO_COLLECTOR: variables(_NOWHERE)}
            by_side = {side: services(of_side) for side, of_side in sides.items()}
            return await measure(by_side, clients, num_draft_tokens, repeats, duration_seconds)

    found = summary(run_or_exit("telemetry_cost", measure_all()))
    table = Table("telemetry", "tokens/s", "over off", "CPU ms a token", "over off")
    for side, figures in found.items():
        table.add_row(
            side,
            f"{figures['tokens_per_second']:.1f}",
            f"{figures['throughput_ratio']:.3f}",
            f"{1000 * figures['cpu_seconds_per_token']:.2f}",
            f"{figures['cpu_ratio']:.3f}",
        )
    Console(highlight=False, soft_wrap=True).print(table)
    settings = {
        "clients": clients,
        "num_draft_tokens": num_draft_tokens,
        "repeats": repeats,
        "duration_seconds": duration_seconds,
        "model": model,
    }
    line = json.dumps({"benchmark": "telemetry_cost", "settings": settings, "machine": machine_facts(), "sides": found})
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    typer.run(main)

"""What the services' own Python costs: the orchestrator for each round, the target for each forward pass.

    python -m benchmarks.overhead [--sequences 64 -k 4 --duration-seconds 10 --json-out FILE]

- orchestrator: CPU time over sequences verified, with so many clients that stream (a message to the client each
  round) and with as many whose calls are unary (none). Everything its process does is in it: requests, links, rounds,
  text, telemetry that is off.
- target: CPU time over forward passes of so many windows, at temperature 0 and where tokens are drawn, driven over one
  stream without an orchestrator, in three parts: the model; packing the batch around it (`ModelRunner.forward`); and
  all else, which is gRPC, protobuf, commands, planning, judging and answers. On a GPU the first part is the device's;
  the others are what a forward pass costs besides the model.

Models and devices are made up (a one-layer stand-in whose passes are padded to a constant time), so that nothing but
the services is measured, in CPU time of their processes. The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.deployment.pass_log import Pass, PassReader
from benchmarks.deployment.services import DeploymentPlan
from benchmarks.measuring.load_bench import RequestMaker, load_bench
from benchmarks.measuring.load_figures import median
from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.output_check import OutputCheck
from benchmarks.measuring.prompts import read_prompts
from benchmarks.measuring.running import run_or_exit
from benchmarks.measuring.target_driver import TargetDriverError, drive_target
from benchmarks.simulation.profile import DeviceModel, DeviceProfile
from benchmarks.simulation.stand_in import MAX_LENGTH, save_stand_in
from specdec.cli.service_group import ServiceGroup
from specdec.cli.three_services import ThreeServices

_PROMPTS = Path(__file__).parent / "prompts.jsonl"
_TARGET_SECONDS = 0.1
"""Of a made-up pass: long enough for the target to wait for all windows of the next one."""
_DRAFT_SECONDS = 0.002
_ACCEPTANCE = 0.7
_PROMPT_TOKENS = 64
_TEMPERATURE = 0.8
_DRAIN_SECONDS = 2.0

Figures = dict[str, float]


class TooShortError(Exception):
    """Nothing happened in a measurement."""

    def __init__(self) -> None:
        super().__init__("no forward pass within --duration-seconds; take a longer one")


def deployment_plan(directory: Path, sequences: int, num_threads: int) -> DeploymentPlan:
    """The services with a stand-in for both models, on devices that take a constant time."""
    model = str(save_stand_in(directory / "stand-in"))
    limits = (f"--max-num-sequences={4 * sequences}", f"--max-batch-rows={32 * sequences}")
    services = ThreeServices(
        model=model,
        drafter="model",
        draft_model=model,
        device="cpu",
        num_threads=num_threads,
        drain_seconds=_DRAIN_SECONDS,
        target_arguments=limits,
        draft_arguments=limits,
        orchestrator_arguments=(f"--max-concurrent-requests={4 * sequences}",),
        environment={"OMP_NUM_THREADS": str(num_threads)},
    )
    profile = DeviceProfile(
        name="constant",
        target=DeviceModel(fixed_seconds=_TARGET_SECONDS),
        draft=DeviceModel(fixed_seconds=_DRAFT_SECONDS),
    )
    return DeploymentPlan(services, directory, profile=profile, acceptance=_ACCEPTANCE)


async def measure_orchestrator(
    plan: DeploymentPlan, sequences: int, num_draft_tokens: int, *, duration_seconds: float, warm_up_seconds: float
) -> Figures:
    """CPU time of its process a round, for streams and for unary calls."""
    prompts = read_prompts(_PROMPTS)
    make_request = RequestMaker(prompts, max_new_tokens=256, temperature=0.0, seed=0, ignores_stops=True, is_cold=False)
    figures: Figures = {}
    async with load_bench(plan.deployment("split"), make_request, len(prompts), OutputCheck()) as bench:
        for name, streams in (("streams", True), ("unary", False)):
            window = await bench.measure(
                sequences,
                num_draft_tokens,
                warm_up_seconds=warm_up_seconds,
                duration_seconds=duration_seconds,
                streams=streams,
            )
            num_rounds = sum(entry.num_sequences for entry in window.target_passes)
            if not num_rounds:
                raise TooShortError
            figures[f"{name}_num_rounds"] = num_rounds
            figures[f"{name}_cpu_seconds_per_round"] = window.cpu_seconds["orchestrator"] / num_rounds
    return figures


async def measure_target(
    plan: DeploymentPlan,
    sequences: int,
    num_draft_tokens: int,
    *,
    temperature: float,
    duration_seconds: float,
    warm_up_seconds: float,
) -> Figures:
    """CPU time of its process a forward pass, by parts; what it takes to measure the pass is left out."""
    deployment = plan.deployment("split")
    spec = next(spec for spec in deployment.specs if spec.name == "target")
    reader = PassReader(deployment.target_log)
    async with ServiceGroup([spec], drain_seconds=_DRAIN_SECONDS) as group:
        process = psutil.Process(group["target"].pid)
        opened = asyncio.Event()
        driving = asyncio.create_task(
            drive_target(
                spec.address,
                num_sequences=sequences,
                num_draft_tokens=num_draft_tokens,
                prompt_length=_PROMPT_TOKENS,
                max_length=MAX_LENGTH,
                temperature=temperature,
                on_opened=opened.set,
            )
        )
        opening = asyncio.create_task(opened.wait())
        try:
            await asyncio.wait([driving, opening], return_when=asyncio.FIRST_COMPLETED)
            await _while(driving, warm_up_seconds)
            before, began = process.cpu_times(), time.perf_counter()
            await _while(driving, duration_seconds)
            after, ended = process.cpu_times(), time.perf_counter()
        finally:
            for task in (driving, opening):
                task.cancel()
            await asyncio.gather(driving, opening, return_exceptions=True)
    passes = reader.between(began, ended)
    if not passes:
        raise TooShortError
    return target_figures(passes, after.user + after.system - before.user - before.system)


def target_figures(passes: list[Pass], cpu_seconds: float) -> Figures:
    """CPU time a pass, in all and by parts; passes at both ends of the time count in full."""
    count = len(passes)
    model = sum(entry.model_cpu_seconds for entry in passes) / count
    forward = sum(entry.forward_cpu_seconds for entry in passes) / count
    # What measures a pass runs on the engine's thread too.
    cpu_seconds -= sum(entry.meter_cpu_seconds for entry in passes)
    return {
        "num_passes": count,
        "sequences_per_pass": median(entry.num_sequences for entry in passes) or 0.0,
        "rows_per_pass": median(entry.num_rows for entry in passes) or 0.0,
        "cpu_seconds_per_pass": cpu_seconds / count,
        "meter_cpu_seconds_per_pass": sum(entry.meter_cpu_seconds for entry in passes) / count,
        "model_cpu_seconds_per_pass": model,
        "packing_cpu_seconds_per_pass": forward - model,
        "other_cpu_seconds_per_pass": cpu_seconds / count - forward,
        "besides_model_cpu_seconds_per_pass": cpu_seconds / count - model,
    }


def main(
    sequences: Annotated[int, typer.Option(min=1, help="Running sequences, and windows of a forward pass.")] = 64,
    num_draft_tokens: Annotated[
        int, typer.Option("--num-draft-tokens", "-k", min=0, help="Draft tokens of a window (K).")
    ] = 4,
    duration_seconds: Annotated[float, typer.Option(min=0.5, help="Of each measurement.")] = 10.0,
    warm_up_seconds: Annotated[float, typer.Option(min=0, help="Before each measurement.")] = 3.0,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass.")] = 1,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
) -> None:
    """Measure what the services' own Python costs."""

    async def measure_all() -> tuple[Figures, Figures, Figures]:
        times = {"duration_seconds": duration_seconds, "warm_up_seconds": warm_up_seconds}
        with tempfile.TemporaryDirectory(prefix="specdec-overhead-") as directory:
            plan = deployment_plan(Path(directory), sequences, num_threads)
            greedy = await measure_target(plan, sequences, num_draft_tokens, temperature=0.0, **times)
            drawn = await measure_target(plan, sequences, num_draft_tokens, temperature=_TEMPERATURE, **times)
            return await measure_orchestrator(plan, sequences, num_draft_tokens, **times), greedy, drawn

    orchestrator, target, drawn = run_or_exit("overhead", measure_all(), TargetDriverError, TooShortError)
    table = Table("what", "ms of CPU time", title=f"{sequences} sequences, K = {num_draft_tokens}")
    for name in ("streams", "unary"):
        table.add_row(f"orchestrator, a round, {name}", f"{1000 * orchestrator[f'{name}_cpu_seconds_per_round']:.3f}")
    for temperature, figures in ((0.0, target), (_TEMPERATURE, drawn)):
        for name in ("model", "packing", "other", "besides_model"):
            what = f"target, a pass of {figures['sequences_per_pass']:g} sequences at temperature {temperature:g}"
            milliseconds = 1000 * figures[f"{name}_cpu_seconds_per_pass"]
            table.add_row(f"{what}, {name.replace('_', ' ')}", f"{milliseconds:.2f}")
    Console(highlight=False, soft_wrap=True).print(table)
    result = {
        "benchmark": "overhead",
        "sequences": sequences,
        "num_draft_tokens": num_draft_tokens,
        "duration_seconds": duration_seconds,
        "num_threads": num_threads,
        "machine": machine_facts(),
        "orchestrator": orchestrator,
        "target": target,
        "target_drawn": drawn,
    }
    line = json.dumps(result)
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


async def _while(driving: asyncio.Task[None], seconds: float) -> None:
    """Wait so long; an end of the driving, which nobody asked for, is raised."""
    done, _ = await asyncio.wait([driving], timeout=seconds)
    if done:
        driving.result()
        raise TargetDriverError("the sequences reached the end of their context; take a shorter --duration-seconds")


if __name__ == "__main__":
    typer.run(main)

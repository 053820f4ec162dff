"""What hiding drafting and the network brings: modes of the pipeline, over round trips and acceptance; one client.

    python -m benchmarks.latency --simulated [--rtt-ms 0.5,20,80 --acceptance 0.8 --plot FILE.png --json-out FILE]
    python -m benchmarks.latency [--model MODEL --drafter KIND --draft-model MODEL -k auto]

The three services are real processes with a relay in front of the target that makes the round trip. On simulated
devices the clock of forward passes is padded (30 ms for the target and 3 ms for a draft step by default), the models
are tiny, and the drafter is right as often as the dial says; all of it, the round trip too, runs slower than life by
--time-scale, so that what this machine computes does not show, and is counted back. Beside each rate stands what the
planner's formula gives for the same times, the acceptance asked for and the hit rate that was measured, and the rate
that is required. Without --simulated a real pair is measured first, by its own times. docs/latency.md tells more.
The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.links.relay_process import RelayFailedError
from benchmarks.measuring.latency_cell import (
    REQUIRED_ACCEPTANCE,
    REQUIRED_DRAFT_SECONDS,
    REQUIRED_TARGET_SECONDS,
)
from benchmarks.measuring.latency_grid import (
    MAX_DRAFT_TOKENS,
    LatencyGrid,
    LatencySettings,
    RealPair,
    SimulatedDevices,
)
from benchmarks.measuring.latency_plot import save_latency_plot
from benchmarks.measuring.latency_table import latency_table
from benchmarks.measuring.load_plot import PlotError, check_plotting
from benchmarks.measuring.load_report import renamed
from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.prompts import read_prompts
from benchmarks.measuring.running import run_or_exit
from orchestrator.pipeline import PipelineMode as ServedMode
from specdec.cli.drafter_kind import DrafterKind, check_draft_model
from specdec.planning.pipeline import PIPELINE_MODES, PipelineMode

_MODES = tuple(mode for mode in PIPELINE_MODES if mode in get_args(ServedMode))
_PLACES = ("pipeline", "rtt_seconds", "acceptance", "num_draft_tokens", "required_tokens_per_second", "is_met")
_TABLE_WIDTH = 140
_PROMPTS = Path(__file__).parent / "prompts.jsonl"


def main(
    simulated: Annotated[bool, typer.Option("--simulated", help="Simulated devices alone.")] = False,
    pipelines: Annotated[str, typer.Option(help="Modes of the pipeline.")] = ",".join(_MODES),
    rtt_ms: Annotated[str, typer.Option(help="Round trips between orchestrator and target.")] = "0.5,20,80",
    acceptance: Annotated[str, typer.Option(help="Of the simulated drafter.")] = f"{REQUIRED_ACCEPTANCE:g}",
    num_draft_tokens: Annotated[
        str,
        typer.Option(
            "--num-draft-tokens",
            "-k",
            help="K: a number, auto (the orchestrator chooses), or planned: the planner chooses for simulated devices, "
            "and a real pair has auto.",
        ),
    ] = "planned",
    target_ms: Annotated[float, typer.Option(min=0.1, help="Of a simulated pass of the target.")] = (
        1e3 * REQUIRED_TARGET_SECONDS
    ),
    draft_ms: Annotated[float, typer.Option(min=0.1, help="Of a simulated draft step.")] = 1e3 * REQUIRED_DRAFT_SECONDS,
    time_scale: Annotated[float, typer.Option(min=1, help="Simulate so many times slower than life.")] = 8.0,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="New tokens of a generation.")] = 401,
    repeats: Annotated[int, typer.Option(min=1, help="Generations at each place.")] = 1,
    model: Annotated[str | None, typer.Option(help="Target model of the real pair.")] = None,
    drafter: Annotated[DrafterKind | None, typer.Option(help="Drafter of the real pair.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Draft model of the real pair.")] = None,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass on CPU.")] = 1,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG for the curves of the simulation.")] = None,
) -> None:
    """Measure the pipeline."""
    check_draft_model(drafter, draft_model)
    if simulated and (model is not None or drafter is not None or draft_model is not None):
        raise typer.BadParameter("--simulated leaves out the real pair that --model and --drafter are of")
    modes = pipelines.split(",")
    if not set(modes) <= set(_MODES) or len(set(modes)) < len(modes):
        raise typer.BadParameter(f"--pipelines {pipelines}: expected different ones of {', '.join(_MODES)}")
    if num_draft_tokens not in ("planned", "auto") and not (
        num_draft_tokens.isdecimal() and int(num_draft_tokens) <= MAX_DRAFT_TOKENS
    ):
        raise typer.BadParameter(f"-k {num_draft_tokens}: expected planned, auto, or at most {MAX_DRAFT_TOKENS}")
    settings = LatencySettings(
        pipelines=cast(tuple[PipelineMode, ...], tuple(modes)),
        rtts_seconds=tuple(value / 1e3 for value in _values("--rtt-ms", rtt_ms, most=10_000)),
        num_draft_tokens=int(num_draft_tokens) if num_draft_tokens.isdecimal() else None,
        is_planned=num_draft_tokens == "planned",
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        num_threads=num_threads,
    )
    devices = SimulatedDevices(target_ms / 1e3, draft_ms / 1e3, _values("--acceptance", acceptance, most=1), time_scale)
    if plot is not None:
        try:
            check_plotting()
        except PlotError as error:
            raise typer.BadParameter(str(error)) from error
    real = None if simulated else RealPair(model, drafter, draft_model, tuple(read_prompts(_PROMPTS)))
    real_cells, cells = run_or_exit("latency", _measure(settings, real, devices), RelayFailedError)
    console = Console(highlight=False, soft_wrap=True, width=max(Console().width, _TABLE_WIDTH))
    if real_cells:
        console.print(latency_table(real_cells, title="Latency, one client", is_simulated=False))
    title = f"latency, target {target_ms:g} ms a pass, draft {draft_ms:g} ms a token, one client"
    console.print(latency_table(cells, title=title, is_simulated=True))
    console.print(
        f"SIMULATED devices, {time_scale:g} x slower than life: forward passes are padded to their simulated time and "
        "the relay delays as much longer; all else is real, and counts for that much less"
    )
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        save_latency_plot(plot, cells, title=title, is_simulated=True)
    line = json.dumps(_report(settings, devices, real_cells, cells))
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


def _report(
    settings: LatencySettings,
    devices: SimulatedDevices,
    real_cells: list[dict[str, Any]],
    cells: list[dict[str, Any]],
) -> dict[str, Any]:
    """The result as JSON values; every figure of a simulation has `simulated_` before its name."""
    required = [cell["is_met"] for cell in cells if cell["is_met"] is not None]
    return {
        "benchmark": "latency",
        "simulated": {
            "target_seconds": devices.target_seconds,
            "draft_seconds": devices.draft_seconds,
            "time_scale": devices.time_scale,
        },
        "max_new_tokens": settings.max_new_tokens,
        "repeats": settings.repeats,
        "machine": machine_facts(),
        "cells": [_labelled(cell) for cell in cells],
        "real_cells": real_cells,
        # None: nothing is required of these places.
        "all_met": all(required) if required else None,
    }


def _labelled(cell: dict[str, Any]) -> dict[str, Any]:
    places = {name: cell[name] for name in _PLACES}
    figures = {name: value for name, value in cell.items() if name not in _PLACES}
    labelled: dict[str, Any] = renamed(figures, "simulated_")
    return {**places, **labelled}


async def _measure(
    settings: LatencySettings, real: RealPair | None, devices: SimulatedDevices
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        real_cells = await LatencyGrid(settings, real).run(progress) if real is not None else []
        return real_cells, await LatencyGrid(settings, devices).run(progress)


def _values(flag: str, text: str, *, most: float) -> tuple[float, ...]:
    """Different numbers from 0 to `most`, from a list with commas."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{flag} {text}: expected numbers with commas between") from error
    if len(set(found)) < len(found) or not all(0 <= value <= most for value in found):
        raise typer.BadParameter(f"{flag} {text}: expected different numbers from 0 to {most:g}")
    return found


if __name__ == "__main__":
    typer.run(main)

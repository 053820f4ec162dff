"""How much the services serve: a closed loop of clients, at several numbers of clients and several K.

    python -m benchmarks.load [--clients 1,2,4,8,16,32 -k 0,2,4,8,auto --prompts FILE --plot FILE.png --json-out FILE]
    python -m benchmarks.load --vs colocated ...
    python -m benchmarks.load --profile benchmarks/profiles/h100-8b-l4.json --clients 1,8,64,256 ...

The services are real processes; target and draft have one CPU each, the orchestrator and the clients the others. Every
K is measured against the same running services, in turns, and the whole grid is repeated; figures are medians, and
ratios are medians of ratios within a repeat. `--vs colocated` measures draft and target in one process on the target's
CPU as well. With `--profile` the devices are simulated: see docs/load.md, which also says how to read the figures.
The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.deployment.placement import NOT_PINNED, pinned_placement
from benchmarks.measuring.load_figures import Goals
from benchmarks.measuring.load_grid import LoadGrid, Result
from benchmarks.measuring.load_plot import PlotError, check_plotting, save_load_plot
from benchmarks.measuring.load_report import auto_choices, cells, comparisons, renamed
from benchmarks.measuring.load_settings import LoadSettings
from benchmarks.measuring.load_tables import load_tables
from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.prompts import PromptFileError, read_prompts, spread
from benchmarks.measuring.running import run_or_exit
from benchmarks.simulation.profile import ProfileError, read_profile
from specdec.cli.drafter_kind import DrafterKind, check_draft_model
from specdec.settings import DEFAULT_MODEL

_PROMPTS = Path(__file__).parent / "prompts.jsonl"
_TABLE_WIDTH = 130
"""A narrower terminal wraps the lines rather than lose digits."""


def report(settings: LoadSettings, result: Result) -> dict[str, Any]:
    """The result as JSON values; with simulated devices every figure has `simulated_` before its name."""
    prefix = "simulated_" if settings.is_simulated else ""
    profile = settings.profile
    return {
        "benchmark": "load",
        "simulated": (
            {"profile": profile.model_dump(), "time_scale": result.time_scale} if profile is not None else None
        ),
        "settings": settings.to_json(),
        "machine": machine_facts(),
        "cpus": result.placement.to_json(),
        "cells": renamed(cells(result.measured), prefix),
        "auto": renamed(auto_choices(result.measured), prefix),
        "split_against_colocated": renamed(comparisons(result.measured), prefix),
        "outputs": {"num_compared": result.outputs.num_compared, "num_differing": result.outputs.num_differing},
    }


def show(console: Console, settings: LoadSettings, result: Result) -> None:
    """Print tables and what must be known to read them."""
    found = cells(result.measured), auto_choices(result.measured), comparisons(result.measured)
    for table in load_tables(*found, is_simulated=settings.is_simulated):
        console.print(table)
    goals = settings.goals
    console.print(
        f"goals of goodput: first token within {goals.ttft_seconds:g} s, then {1000 * goals.inter_token_seconds:g} ms "
        f"a token; {settings.repeats} x {settings.duration_seconds:g} s a point; "
        f"{result.outputs.num_differing} of {result.outputs.num_compared} outputs differ from another of their prompt"
    )
    if settings.profile is not None:
        console.print(
            f"SIMULATED devices ({settings.profile.name}), {result.time_scale:g} x slower than life: forward passes "
            "are padded to their simulated time; all else is real, and counts for that much less"
        )


def main(
    prompts: Annotated[
        Path, typer.Option(help="JSON lines with question_id, category and turns, of which the first is used.")
    ] = _PROMPTS,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Take only so many prompts, spread evenly over the categories.")
    ] = None,
    clients: Annotated[str, typer.Option(help="Numbers of clients.")] = "1,2,4,8,16,32",
    num_draft_tokens: Annotated[
        str, typer.Option("--num-draft-tokens", "-k", help="Draft tokens a round (K): numbers, and auto.")
    ] = "0,2,4,8,auto",
    vs: Annotated[
        Literal["colocated"] | None, typer.Option(help="Measure this too: draft and target in one process, on one CPU.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Windows at each point.")] = 3,
    warm_up_seconds: Annotated[float, typer.Option(min=0, help="Under load, before each window.")] = 2.0,
    duration_seconds: Annotated[float, typer.Option(min=0.1, help="Of each window, in real seconds.")] = 8.0,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Most new tokens of a generation.")] = 128,
    model: Annotated[str | None, typer.Option(help="Target model; default: the embedded one, or a stand-in.")] = None,
    drafter: Annotated[DrafterKind | None, typer.Option(help="Drafter of the services.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Draft model.")] = None,
    cold: Annotated[
        bool, typer.Option("--cold/--warm", help="Whether no request finds the prefix of another in the caches.")
    ] = True,
    temperature: Annotated[float, typer.Option(min=0, help="Softmax temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first prompt; the others count on.")] = 0,
    ttft_goal_seconds: Annotated[float, typer.Option(min=0, help="Goal of goodput: time to the first token.")] = 2.0,
    inter_token_goal_seconds: Annotated[float, typer.Option(min=0, help="Goal of goodput: mean time a token.")] = 0.3,
    pin: Annotated[bool, typer.Option(help="One CPU for the target, one for the draft; never in a simulation.")] = True,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass on CPU.")] = 1,
    device: Annotated[str, typer.Option(help="Device of every model.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Element type of the weights of every model.")] = "auto",
    max_batch_rows: Annotated[int | None, typer.Option(min=1, help="Most rows of a forward pass.")] = None,
    profile: Annotated[Path | None, typer.Option(help="Simulate the devices of this file.")] = None,
    time_scale: Annotated[
        float | None, typer.Option(min=1, help="Simulate so many times slower than life; default: found by a trial.")
    ] = None,
    acceptance: Annotated[
        float | None, typer.Option(min=0, max=1, help="Of the stand-in's drafter; default: the profile's.")
    ] = None,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG for the curves.")] = None,
) -> None:
    """Measure the services under load."""
    check_draft_model(drafter, draft_model)
    sizes = _numbers("-k", num_draft_tokens, least=0, words=("auto",))
    try:
        read = read_prompts(prompts)
        devices = read_profile(profile) if profile is not None else None
        if plot is not None:
            check_plotting()
    except (PromptFileError, ProfileError, PlotError) as error:
        raise typer.BadParameter(str(error)) from error
    if devices is None and (time_scale is not None or acceptance is not None):
        raise typer.BadParameter("--time-scale and --acceptance belong to a simulation, --profile")
    if devices is not None and model is None:
        if drafter is not None or draft_model is not None:
            raise typer.BadParameter("a simulation without --model has a stand-in for the drafter too")
        acceptance = devices.acceptance if acceptance is None else acceptance
        if acceptance is None:
            raise typer.BadParameter("the profile has no acceptance; give --acceptance, or --model and a drafter")
    placement = pinned_placement() if pin and devices is None else NOT_PINNED
    if vs is not None and devices is None and placement == NOT_PINNED:
        raise typer.BadParameter("--vs colocated needs two CPUs and --pin: without, both sides have the same")
    if drafter == "none" and (vs is not None or sizes != ["0"]):
        raise typer.BadParameter("--drafter none goes with -k 0 alone")
    settings = LoadSettings(
        num_clients=tuple(int(n) for n in _numbers("--clients", clients, least=1)),
        num_draft_tokens=tuple(None if k == "auto" else int(k) for k in sizes),
        sides=("split", "colocated") if vs is not None else ("split",),
        repeats=repeats,
        warm_up_seconds=warm_up_seconds,
        duration_seconds=duration_seconds,
        max_new_tokens=max_new_tokens,
        model=model or (DEFAULT_MODEL if devices is None else None),
        drafter=drafter,
        draft_model=draft_model,
        is_cold=cold,
        temperature=temperature,
        seed=seed,
        goals=Goals(ttft_goal_seconds, inter_token_goal_seconds),
        num_threads=num_threads,
        device=device,
        dtype=dtype,
        max_batch_rows=max_batch_rows,
        profile=devices,
        time_scale=time_scale,
        acceptance=acceptance,
    )
    grid = LoadGrid(settings, read if limit is None else spread(read, limit), placement)
    result = run_or_exit("load", _with_progress(grid))
    console = Console(highlight=False, soft_wrap=True, width=max(Console().width, _TABLE_WIDTH))
    show(console, settings, result)
    values = report(settings, result)
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        name = settings.profile.name if settings.profile is not None else str(settings.model)
        save_load_plot(
            plot, cells(result.measured), comparisons(result.measured), title=name, is_simulated=settings.is_simulated
        )
    line = json.dumps(values)
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


def _numbers(flag: str, text: str, *, least: int, words: tuple[str, ...] = ()) -> list[str]:
    """Different numbers of at least `least`, and words, from a list with commas."""
    found = [part.strip() for part in text.split(",")]
    if len(set(found)) < len(found) or not all(
        part in words or (part.isdecimal() and int(part) >= least) for part in found
    ):
        raise typer.BadParameter(f"{flag} {text}: expected different numbers from {least} on, with commas between")
    return found


async def _with_progress(grid: LoadGrid) -> Result:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        return await grid.run(progress)


if __name__ == "__main__":
    typer.run(main)

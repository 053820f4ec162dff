"""What a forward pass costs, by rows, sequences and context, with each kernel against PyTorch's own.

    python -m benchmarks.forward [--sides float32/default,float32/auto,int4/auto --plot FILE.png --json-out FILE ...]

A side is an element type and a linear kernel (`--dtype` and `--linear-kernel` of the services). All sides run every
pass in turn; figures are medians, ratios are taken within a turn. The first side is the baseline. `--clock cpu` counts
the processor time of the thread instead of the time that went by, for a machine that others use too; it needs one
thread. The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.measuring.forward_plot import save_forward_plot
from benchmarks.measuring.forward_report import Clock, entries, tables
from benchmarks.measuring.forward_timing import Side, parse_side, sweep_points, time_in_turns
from benchmarks.measuring.machine import machine_facts
from specdec.models.errors import ModelError
from specdec.settings import DEFAULT_MODEL

_CACHE_TOLERANCE = 0.05


def main(
    model: Annotated[str, typer.Option(help="Model.")] = DEFAULT_MODEL,
    sides: Annotated[
        str, typer.Option(help="Element types and linear kernels to compare; the first is the baseline.")
    ] = "float32/default,float32/auto",
    rows: Annotated[str, typer.Option(help="Rows of one sequence.")] = "1,2,4,8,16,32",
    sequences: Annotated[str, typer.Option(help="Sequences of one row.")] = "1,2,4,8,16",
    contexts: Annotated[str, typer.Option(help="Cached tokens before one row.")] = "128,256,512,1024,2048,4096",
    context: Annotated[int, typer.Option(min=1, help="Cached tokens in the other two sweeps.")] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Passes of each kind.")] = 15,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass on CPU.")] = 1,
    clock: Annotated[Clock, typer.Option(help="What is counted: time that went by, or processor time.")] = "wall",
    device: Annotated[str, typer.Option(help="Device of the model.")] = "cpu",
    plot: Annotated[Path | None, typer.Option(help="PNG file for curves.")] = None,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
) -> None:
    """Time forward passes."""
    names = list(dict.fromkeys(sides.split(",")))
    sweeps = sweep_points(_sizes(rows), _sizes(sequences), _sizes(contexts), context)
    if clock == "cpu" and (num_threads > 1 or device != "cpu"):
        raise typer.BadParameter("--clock cpu counts one thread; it needs --num-threads 1 and --device cpu")
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("--plot needs matplotlib: pip install 'specdec[bench]'")
    try:
        for name in names:
            parse_side(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    torch.set_num_threads(num_threads)
    points = list(dict.fromkeys(point for members in sweeps.values() for point in members))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=repeats)
        loaded = []
        for name in names:
            progress.update(task, description=f"loading {name}")
            try:
                loaded.append(Side(name, model, device))
            except ModelError as error:
                typer.echo(f"benchmarks.forward: {name}: {error}", err=True)
                raise typer.Exit(1) from error
            loaded[-1].prepare(points)
        progress.update(task, description="timing")
        times = time_in_turns(loaded, points, repeats, lambda: progress.advance(task))
    found = entries(sweeps, times, clock)
    cache = {side.name: _cache_facts(side, max(point.context for point in points)) for side in loaded}
    console = Console(highlight=False, soft_wrap=True)
    for table in tables(found, names, clock):
        console.print(table)
    for name, facts in cache.items():
        console.print(f"{name}: {facts['bytes_per_token']:,.0f} bytes of key-value memory a token, {facts['verdict']}")
    result = {
        "benchmark": "forward",
        "model": model,
        "sides": names,
        "num_threads": num_threads,
        "repeats": repeats,
        "clock": clock,
        "device": device,
        "machine": machine_facts(),
        "passes": found,
        "key_value_memory": cache,
    }
    if plot is not None:
        save_forward_plot(plot, found, names, title=f"{model}, {num_threads} thread(s)", clock=clock)
    line = json.dumps(result)
    if json_out is not None:
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


def _sizes(text: str) -> list[int]:
    """Increasing sizes from a list such as 1,2,4."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = [0]
    if sizes[0] < 1:
        raise typer.BadParameter(f"{text!r} is no list of sizes such as 1,2,4")
    return sizes


def _cache_facts(side: Side, num_tokens: int) -> dict[str, Any]:
    """Key-value memory of a token, against what the shapes of the model say."""
    found, expected = side.cache_bytes_per_token(num_tokens), side.expected_cache_bytes_per_token()
    within = abs(found - expected) <= _CACHE_TOLERANCE * expected
    return {
        "bytes_per_token": found,
        "expected_bytes_per_token": expected,
        "verdict": f"{'within' if within else 'NOT within'} {_CACHE_TOLERANCE:.0%} of layers x heads x dim x 2 x dtype",
    }


if __name__ == "__main__":
    typer.run(main)

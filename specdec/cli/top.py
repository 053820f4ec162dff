"""`specdec top`: a running system at a glance."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from specdec.top.endpoint import Endpoint
    from specdec.top.reading import Reading

_WIDTH_WITHOUT_TERMINAL = 120
_MAX_PROCESSES = 256


def top(
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics",
            envvar="SPECDEC_METRICS",
            metavar="HOST:PORT[,HOST:PORT]",
            help="Where the processes serve their metrics: the --metrics-port of each, in any order.",
        ),
    ],
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between refreshes, and what rates are of.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a refresh instead.")] = False,
) -> None:
    """Show replicas, sequences, K, acceptance, tokens/s, batches and key-value memory of a running system.

    A process that does not answer is shown as such. With --once the status is 1 if none does.
    """
    # Imported here so that `specdec --help` stays quick.
    from specdec.cli.signals import StoppedBySignal, until_signal
    from specdec.top.endpoint import Endpoint

    try:
        endpoints = [Endpoint.parse(name) for address in metrics.split(",") if (name := address.strip())]
    except ValueError as error:
        raise typer.BadParameter(f"--metrics: {error}") from error
    endpoints = list(dict.fromkeys(endpoints))
    if not 0 < len(endpoints) <= _MAX_PROCESSES:
        raise typer.BadParameter(f"--metrics names {len(endpoints)} processes; 1 to {_MAX_PROCESSES} can be shown")
    try:
        answered = asyncio.run(until_signal(_top(endpoints, interval, is_once=once, as_json=as_json)))
    except StoppedBySignal as stopped:
        # There is no other way to end it.
        raise typer.Exit(stopped.exit_status if once else 0) from stopped
    if not answered:
        raise typer.Exit(1)


async def _top(endpoints: list[Endpoint], interval_seconds: float, *, is_once: bool, as_json: bool) -> bool:
    """Show readings until the end; whether any process answered the last time."""
    from rich.live import Live

    from specdec.top.table import system_table
    from specdec.top.watch import watch

    console = _console()
    readings: list[Reading] = []
    with contextlib.ExitStack() as stack:
        live = None
        if console.is_terminal and not (as_json or is_once):
            live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))
        async with contextlib.aclosing(watch(endpoints, interval_seconds)) as watched:
            is_first = True
            async for readings in watched:
                if live is not None:
                    live.update(system_table(readings, width=console.width), refresh=True)
                elif is_first:
                    # There are no rates yet; only on a screen that is better than nothing.
                    is_first = False
                    continue
                elif as_json:
                    typer.echo(json.dumps({"processes": [each.to_dict() for each in readings]}))
                else:
                    console.print(system_table(readings, width=console.width))
                if is_once:
                    break
    return any(not each.problem for each in readings)


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    return console

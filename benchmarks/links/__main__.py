"""A relay in a process of its own.

    python -m benchmarks.links --to 127.0.0.1:50052 --rtt-ms 20 [--listen 127.0.0.1:50062 --jitter-ms 1 ...]

Prints its address as JSON and relays until it is stopped by a signal. With `--commands` it also reads commands from
standard input and ends with it: `cut`, `refuse`, `accept`, `freeze`, `thaw`, `counts`, or conditions as JSON such as
`{"rtt_seconds": 0.005}`. Each is answered by a line of JSON: the counts so far, or `{"error": "..."}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated

import typer

from benchmarks.links.conditions import LinkConditions
from benchmarks.links.relay import Relay, precise_event_loop
from specdec.cli.signals import StoppedBySignal, until_signal


async def carry_out(relay: Relay, command: str) -> dict[str, object]:
    """One command; the answer as JSON values."""
    if command == "cut":
        relay.cut()
    elif command == "refuse":
        relay.refuse()
    elif command == "accept":
        await relay.accept()
    elif command == "freeze":
        relay.freeze()
    elif command == "thaw":
        relay.thaw()
    elif command != "counts":
        try:
            relay.change(LinkConditions(**json.loads(command)))
        except (ValueError, TypeError) as error:
            return {"error": f"neither a command nor conditions: {error}"}
    return dict(relay.counts.to_json())


async def serve(relay: Relay, *, reads_commands: bool) -> None:
    """Relay until standard input ends, or for ever."""
    async with relay:
        _say({"address": relay.address})
        if not reads_commands:
            await asyncio.Event().wait()
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            _say(await carry_out(relay, line.decode().strip()))


def main(
    to: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to pass everything on to.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 is chosen by the system.")
    ] = "127.0.0.1:0",
    rtt_ms: Annotated[float, typer.Option(min=0, help="There and back; each way takes half of it.")] = 0.0,
    jitter_ms: Annotated[
        float, typer.Option(min=0, help="Each way takes up to so much more or less; at most half of --rtt-ms.")
    ] = 0.0,
    bytes_per_second: Annotated[
        float | None, typer.Option(min=1, help="Bandwidth each way of each connection; default: no limit.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the jitter.")] = 0,
    commands: Annotated[bool, typer.Option(help="Read commands from standard input, and end with it.")] = False,
) -> None:
    """Relay TCP connections with a delay."""
    loop = precise_event_loop()
    try:
        conditions = LinkConditions(
            rtt_seconds=rtt_ms / 1e3, jitter_seconds=jitter_ms / 1e3, bytes_per_second=bytes_per_second, seed=seed
        )
        relay = Relay(to, conditions, listen=listen)
        loop.run_until_complete(until_signal(serve(relay, reads_commands=commands)))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except StoppedBySignal as stopped:
        raise typer.Exit(stopped.exit_status) from stopped
    except OSError as error:
        typer.echo(f"benchmarks.links: {error}", err=True)
        raise typer.Exit(1) from error
    finally:
        loop.close()


def _say(values: dict[str, object]) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    typer.run(main)

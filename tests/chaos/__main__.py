"""Breaks running services at random while they are used, and compares every output with the undisturbed one.

    python -m tests.chaos --requests 200 --faults 100 --targets 2 --drafts 2 --seed 7

Prints a table, and one JSON object as the last line. The exit status is 1 if a token was lost, duplicated or changed, a
request failed, a process died by itself, or a sequence was left behind.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from typing import Annotated

import typer

from specdec.cli.signals import StoppedBySignal, until_signal
from tests.chaos.member import MemberFailedError, Part
from tests.chaos.run import TINY, ChaosOptions, run_chaos


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests, each sent at least once.")] = 200,
    faults: Annotated[int, typer.Option(min=0, help="Faults, at random rounds.")] = 100,
    targets: Annotated[int, typer.Option(min=1, help="Target services; with one alone nothing is done to it.")] = 2,
    drafts: Annotated[int, typer.Option(min=0, help="Draft services.")] = 2,
    orchestrators: Annotated[int, typer.Option(min=1, help="Orchestrators; with one alone nothing is done to it.")] = 2,
    clients: Annotated[int, typer.Option(min=1, help="Clients, each with one request at a time.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of the longest request.")] = 160,
    seconds: Annotated[float, typer.Option(min=1, help="After this no further fault begins.")] = 600.0,
    seed: Annotated[int | None, typer.Option(help="Of requests and faults. Default: drawn, and printed.")] = None,
    model: Annotated[str, typer.Option(help="Target model; the default is made here, tiny and seeded.")] = TINY,
    rtt_ms: Annotated[float, typer.Option(min=0, help="Round trip between the processes.")] = 20.0,
    pipeline: Annotated[str, typer.Option(help="Of the orchestrators: off, ahead, candidates or auto.")] = "off",
    part: Annotated[
        list[str] | None, typer.Option(help="Only break this part: target, draft or orchestrator; may be repeated.")
    ] = None,
) -> None:
    """Break running services at random while they are used."""
    chosen: dict[str, Part] = {"target": "target", "draft": "draft", "orchestrator": "orchestrator"}
    if unknown := set(part or ()) - set(chosen):
        raise typer.BadParameter(f"--part is {unknown.pop()!r}; it must be one of {', '.join(chosen)}")
    options = ChaosOptions(
        num_requests=requests,
        num_faults=faults,
        num_targets=targets,
        num_drafts=drafts,
        num_orchestrators=orchestrators,
        num_clients=clients,
        max_new_tokens=max_new_tokens,
        max_seconds=seconds,
        seed=secrets.randbits(32) if seed is None else seed,
        model=model,
        rtt_seconds=rtt_ms / 1e3,
        orchestrator_arguments=(f"--pipeline={pipeline}",),
        parts=tuple(chosen[name] for name in part or chosen if name != "orchestrator" or orchestrators > 1),
    )
    try:
        report = asyncio.run(until_signal(run_chaos(options, lambda line: print(line, file=sys.stderr, flush=True))))
    except StoppedBySignal as stopped:
        raise typer.Exit(stopped.exit_status) from stopped
    except MemberFailedError as error:
        typer.echo(f"seed {options.seed}: {error}", err=True)
        raise typer.Exit(1) from error
    print("\n".join(report.lines()))
    print(json.dumps(report.to_json(), ensure_ascii=False))
    raise typer.Exit(0 if report.is_clean else 1)


if __name__ == "__main__":
    typer.run(main)

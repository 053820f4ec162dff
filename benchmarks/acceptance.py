"""How many tokens a round commits, by drafter, K, temperature and category. Nothing is timed: the machine may be busy.

    python -m benchmarks.acceptance [--prompts FILE --json-out FILE --drafter all -k 2,4,8 --temperature 0,0.8 ...]

The services are real processes on this machine: one target, and a draft service and an orchestrator for each drafter.
Many requests run at a time, so that the target works on large batches. Requests name no tenant: nothing is drafted from
the output of another one. The mean acceptance length counts the recovered or bonus token. The last line of standard
output is the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.measuring.acceptance_report import Cell, Condition, acceptance_table
from benchmarks.measuring.deployment import Deployment
from benchmarks.measuring.drafters import HELP, choose_draft_model, parse_drafters
from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.prompts import Prompt, PromptFileError, read_prompts, spread
from benchmarks.measuring.running import run_or_exit
from specdec.cli.drafter_kind import DrafterKind
from specdec.cli.service_group import ServiceGroup
from specdec.cli.three_services import ThreeServices
from specdec.client import GenerationClient
from specdec.settings import DEFAULT_MODEL
from specdec.v1 import generation_pb2, model_pb2, sampling_pb2

_PROMPTS = Path(__file__).parent / "prompts.jsonl"
_DRAIN_SECONDS = 2.0
_TIMEOUT_SECONDS = 6 * 3600.0
# A busy machine must not cost a round its drafts: that would count as acceptance.
_PATIENCE = ("--draft-timeout-seconds=600", "--round-timeout-seconds=3600")
_COLUMNS = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())


@dataclass(frozen=True)
class AcceptanceSettings:
    """What is measured."""

    model: str
    drafters: tuple[DrafterKind, ...]
    draft_model: str | None
    num_draft_tokens: tuple[int, ...]
    temperatures: tuple[float, ...]
    rule: Literal["coupled", "rejection", "block"]
    max_new_tokens: int
    seed: int
    concurrency: int
    """Requests at a time."""
    num_threads: int
    device: str
    dtype: str

    @property
    def conditions(self) -> list[Condition]:
        """All of them."""
        return [
            Condition(drafter, temperature, count)
            for drafter in self.drafters
            for temperature in self.temperatures
            for count in self.num_draft_tokens
        ]

    def request(self, prompt: Prompt, condition: Condition) -> generation_pb2.GenerateRequest:
        """One prompt under one condition."""
        return generation_pb2.GenerateRequest(
            chat=generation_pb2.ChatInput(messages=[generation_pb2.ChatMessage(role="user", content=prompt.text)]),
            sampling=sampling_pb2.SamplingParams(temperature=condition.temperature, seed=self.seed),
            max_new_tokens=self.max_new_tokens,
            num_draft_tokens=condition.num_draft_tokens,
            acceptance_rule=model_pb2.AcceptanceRule.Value(f"ACCEPTANCE_RULE_{self.rule.upper()}"),
        )


async def measure(settings: AcceptanceSettings, prompts: Sequence[Prompt], console: Console) -> list[Cell]:
    """Every prompt under every condition.

    Raises:
        ServiceFailedError: a service did not start.
        grpc.aio.AioRpcError: a generation failed.
    """
    base = ThreeServices(
        model=settings.model,
        device=settings.device,
        dtype=settings.dtype,
        num_threads=settings.num_threads,
        drain_seconds=_DRAIN_SECONDS,
        orchestrator_arguments=_PATIENCE,
    )
    deployment = Deployment.plan(base, settings.drafters, settings.draft_model)
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(Progress(*_COLUMNS, console=console))
        await stack.enter_async_context(ServiceGroup(deployment.specs, drain_seconds=_DRAIN_SECONDS))
        clients = {
            drafter: await stack.enter_async_context(GenerationClient(address, timeout_seconds=_TIMEOUT_SECONDS))
            for drafter, address in deployment.addresses.items()
        }
        return await run_requests(settings, prompts, clients, progress)


async def run_requests(
    settings: AcceptanceSettings,
    prompts: Sequence[Prompt],
    clients: Mapping[DrafterKind, GenerationClient],
    progress: Progress,
) -> list[Cell]:
    """As many requests at a time as the settings say; those of one prompt one after the other."""
    cells = [Cell(condition) for condition in settings.conditions]
    waiting = iter([(prompt, cell) for prompt in prompts for cell in cells])
    task = progress.add_task("", total=len(prompts) * len(cells))

    async def work() -> None:
        for prompt, cell in waiting:
            client = clients[cell.condition.drafter]
            cell.add(prompt.category, await client.collect(settings.request(prompt, cell.condition)))
            progress.advance(task)

    workers = [asyncio.create_task(work()) for _ in range(settings.concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return cells


def main(
    prompts: Annotated[
        Path, typer.Option(help="JSON lines with question_id, category and turns, of which the first is used.")
    ] = _PROMPTS,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Take only so many prompts, spread evenly over the categories.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Most new tokens of a generation.")] = 128,
    model: Annotated[str, typer.Option(help="Target model.")] = DEFAULT_MODEL,
    drafter: Annotated[list[str] | None, typer.Option(metavar="KIND", help=HELP)] = None,
    draft_model: Annotated[
        str | None, typer.Option(help="Draft model; default: the one that comes with the target.")
    ] = None,
    num_draft_tokens: Annotated[
        str, typer.Option("--num-draft-tokens", "-k", metavar="N,...", help="Draft tokens a round (K).")
    ] = "4",
    temperature: Annotated[str, typer.Option(metavar="T,...", help="Softmax temperatures; 0 is greedy.")] = "0",
    rule: Annotated[
        Literal["coupled", "rejection", "block"], typer.Option(help="How draft tokens are judged.")
    ] = "coupled",
    seed: Annotated[int, typer.Option(min=0, help="Seed of every generation.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 32,
    num_threads: Annotated[int, typer.Option(min=0, help="Threads of a forward pass on CPU; 0: all.")] = 0,
    device: Annotated[str, typer.Option(help="Device of every model.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Element type of the weights of every model.")] = "auto",
) -> None:
    """Measure acceptance alone."""
    drafters = parse_drafters(drafter, draft_model)
    try:
        counts = tuple(int(part) for part in num_draft_tokens.split(","))
        temperatures = tuple(float(part) for part in temperature.split(","))
        if min(*counts, *temperatures) < 0:
            raise ValueError("neither draft tokens nor temperatures can be negative")
        read = read_prompts(prompts)
    except (ValueError, PromptFileError) as error:
        raise typer.BadParameter(str(error)) from error
    settings = AcceptanceSettings(
        model=model,
        drafters=drafters,
        draft_model=choose_draft_model(drafters, model, draft_model),
        num_draft_tokens=counts,
        temperatures=temperatures,
        rule=rule,
        max_new_tokens=max_new_tokens,
        seed=seed,
        concurrency=concurrency,
        num_threads=num_threads,
        device=device,
        dtype=dtype,
    )
    taken = read if limit is None else spread(read, limit)
    cells = run_or_exit("acceptance", measure(settings, taken, Console(stderr=True)))
    console = Console(highlight=False, soft_wrap=True)
    categories = list(dict.fromkeys(prompt.category for prompt in taken))
    for kind in drafters:
        console.print(acceptance_table(kind, cells, categories))
    console.print(f"{len(taken)} prompts, {rule} rule; the recovered or bonus token counts")
    num_fallback_rounds = sum(cell.overall.num_fallback_rounds for cell in cells)
    if num_fallback_rounds:
        console.print(f"{num_fallback_rounds} rounds had to do without the draft service: the numbers are too low")
    line = json.dumps(
        {
            "benchmark": "acceptance",
            "settings": asdict(settings),
            "machine": machine_facts(),
            "num_prompts": len(taken),
            "cells": [cell.report() for cell in cells],
        }
    )
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    typer.run(main)

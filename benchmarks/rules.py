"""Acceptance rules side by side: how many draft tokens each accepts, what it sends, and how fast it is.

    python -m benchmarks.rules [--prompts FILE --json-out FILE --limit 4 --max-new-tokens 48 --draft-model NAME]

One client; for each prompt and temperature the rules take turns. Target and draft service are real processes; the
orchestrator runs in this one, so that the bytes on its links can be counted. Without --draft-model the drafter is the
target without some of its middle layers (--draft-layers): slow, but a model like it, which is what tells the rules
apart. The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.prompts import Prompt, PromptFileError, read_prompts, spread
from benchmarks.measuring.shortened_model import save_shortened
from orchestrator.service import GenerationService
from orchestrator.settings import OrchestratorSettings
from specdec.cli.service_group import ServiceFailedError, ServiceGroup
from specdec.cli.three_services import ThreeServices
from specdec.client import GenerationClient, GenerationResult
from specdec.serving.host import ServiceHost
from specdec.settings import DEFAULT_MODEL
from specdec.telemetry import names
from specdec.telemetry.metrics import OrchestratorMetrics
from specdec.v1 import generation_pb2, model_pb2, sampling_pb2

_PROMPTS = Path(__file__).parent / "prompts.jsonl"
_RULES = {
    "coupled": model_pb2.ACCEPTANCE_RULE_COUPLED,
    "rejection": model_pb2.ACCEPTANCE_RULE_REJECTION,
    "block": model_pb2.ACCEPTANCE_RULE_BLOCK,
}
_TEMPERATURES = (0.0, 0.3, 0.7, 1.0)


@dataclass
class Cell:
    """Sums over the prompts, for one rule at one temperature."""

    rule: str
    temperature: float
    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_tokens: int = 0
    decode_seconds: float = 0.0
    link_bytes: float = 0.0
    lost_mass: float = 0.0

    def add(self, result: GenerationResult, link_bytes: float) -> None:
        """Take in one generation."""
        assert result.finished is not None  # noqa: S101 - the client raises otherwise
        stats = result.finished.stats
        self.num_rounds += stats.num_rounds
        self.num_draft_tokens += stats.num_draft_tokens
        self.num_accepted_tokens += stats.num_accepted_tokens
        later = len(result.token_ids) - 1
        self.num_tokens += later
        self.decode_seconds += later / stats.tokens_per_second if stats.tokens_per_second else 0.0
        self.link_bytes += link_bytes
        self.lost_mass += sum(report.lost_draft_mass for report in result.rounds)

    def summary(self) -> dict[str, object]:
        """What is reported."""
        rounds = max(self.num_rounds, 1)
        return {
            "rule": self.rule,
            "temperature": self.temperature,
            "acceptance_rate": self.num_accepted_tokens / max(self.num_draft_tokens, 1),
            "mean_acceptance_length": 1 + self.num_accepted_tokens / rounds,
            "tokens_per_second": self.num_tokens / self.decode_seconds if self.decode_seconds else 0.0,
            "bytes_per_round": self.link_bytes / rounds,
            "lost_draft_mass": self.lost_mass / rounds,
        }


class LinkBytes:
    """Bytes that the orchestrator has sent and received on its links so far."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader])
        self.metrics = OrchestratorMetrics(self._provider.get_meter("benchmarks"))

    def total(self) -> float:
        """The sum over both links and directions."""
        data: Any = self._reader.get_metrics_data()
        return sum(
            float(point.value)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name in (names.BYTES_SENT.name, names.BYTES_RECEIVED.name)
            for point in metric.data.data_points
        )

    def close(self) -> None:
        """Stop counting."""
        self._provider.shutdown()


async def measure(
    prompts: Sequence[Prompt], services: ThreeServices, num_draft_tokens: int, max_new_tokens: int, console: Console
) -> list[Cell]:
    """Every rule at every temperature over all prompts.

    Raises:
        ServiceFailedError: a service did not start.
        grpc.aio.AioRpcError: a generation failed.
    """
    cells = {(rule, temperature): Cell(rule, temperature) for temperature in _TEMPERATURES for rule in _RULES}
    target, draft, _ = services.specs()
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(Progress(console=console))
        task = progress.add_task("starting", total=len(prompts) * len(cells))
        await stack.enter_async_context(ServiceGroup((draft, target), drain_seconds=2))
        counted = LinkBytes()
        stack.callback(counted.close)
        service = GenerationService(
            OrchestratorSettings(target=target.address, draft=draft.address), metrics=counted.metrics
        )
        host = await stack.enter_async_context(ServiceHost(service, host="127.0.0.1", port=0, drain_seconds=2))
        client = await stack.enter_async_context(GenerationClient(host.address))
        if service.drafts is None or not await service.drafts.available(60) or not await service.targets.available(60):
            raise ServiceFailedError("the orchestrator did not reach the services within a minute")
        progress.update(task, description="measuring")
        for index, prompt in enumerate(prompts):
            for temperature in _TEMPERATURES:
                for turn in range(len(_RULES)):
                    rule = list(_RULES)[(turn + index) % len(_RULES)]
                    request = generation_pb2.GenerateRequest(
                        chat=generation_pb2.ChatInput(
                            messages=[generation_pb2.ChatMessage(role="user", content=prompt.text)]
                        ),
                        sampling=sampling_pb2.SamplingParams(temperature=temperature, seed=index, ignore_eos=True),
                        max_new_tokens=max_new_tokens,
                        num_draft_tokens=num_draft_tokens,
                        acceptance_rule=_RULES[rule],
                    )
                    before = counted.total()
                    result = await client.collect(request)
                    cells[rule, temperature].add(result, counted.total() - before)
                    progress.advance(task)
    return list(cells.values())


def main(
    prompts: Annotated[
        Path, typer.Option(help="JSON lines with question_id, category and turns, of which the first is used.")
    ] = _PROMPTS,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts, spread evenly over the categories.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="New tokens of a generation.")] = 48,
    model: Annotated[str, typer.Option(help="Target model.")] = DEFAULT_MODEL,
    draft_model: Annotated[str | None, typer.Option(help="Draft model.")] = None,
    draft_layers: Annotated[int, typer.Option(min=1, help="Layers kept where no draft model is given.")] = 27,
    num_draft_tokens: Annotated[int, typer.Option("--num-draft-tokens", "-k", min=1, help="Draft tokens a round.")] = 4,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass on CPU.")] = 1,
) -> None:
    """Compare the acceptance rules."""
    try:
        taken = spread(read_prompts(prompts), limit)
    except PromptFileError as error:
        raise typer.BadParameter(str(error)) from error
    with tempfile.TemporaryDirectory() as temporary:
        drafter = draft_model or str(save_shortened(model, draft_layers, Path(temporary) / "draft"))
        services = ThreeServices(model=model, draft_model=drafter, num_threads=num_threads, drain_seconds=2)
        try:
            cells = asyncio.run(measure(taken, services, num_draft_tokens, max_new_tokens, Console(stderr=True)))
        except grpc.aio.AioRpcError as error:
            typer.echo(f"benchmarks.rules: {error.code().name}: {error.details()}", err=True)
            raise typer.Exit(1) from error
        except (ServiceFailedError, OSError) as error:
            typer.echo(f"benchmarks.rules: {error}", err=True)
            raise typer.Exit(1) from error
    summaries = [cell.summary() for cell in cells]
    table = Table("T", "rule", "acceptance", "length", "tokens/s", "bytes/round", "lost mass")
    for each in summaries:
        table.add_row(
            f"{each['temperature']:.1f}",
            f"{each['rule']}",
            f"{each['acceptance_rate']:.3f}",
            f"{each['mean_acceptance_length']:.2f}",
            f"{each['tokens_per_second']:.2f}",
            f"{each['bytes_per_round']:.0f}",
            f"{each['lost_draft_mass']:.4f}",
        )
    console = Console(highlight=False)
    console.print(table)
    drafter_name = draft_model or f"{model} with {draft_layers} layers"
    console.print(
        f"drafter: {drafter_name}; K = {num_draft_tokens}; {len(taken)} prompts, {num_threads} thread(s) each"
    )
    result = {
        "benchmark": "rules",
        "model": model,
        "drafter": drafter_name,
        "num_draft_tokens": num_draft_tokens,
        "max_new_tokens": max_new_tokens,
        "prompts": [asdict(prompt)["question_id"] for prompt in taken],
        "machine": machine_facts(),
        "cells": summaries,
    }
    line = json.dumps(result)
    if json_out is not None:
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    typer.run(main)

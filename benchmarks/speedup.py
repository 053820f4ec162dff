"""How much faster speculative decoding makes one client, measured against the same services without drafts and against
transformers' own `generate`.

    python -m benchmarks.speedup [--prompts FILE --json-out FILE --limit 26 --num-draft-tokens 4 ...]

The services are real processes on this machine, and so is transformers. For each prompt every side generates once,
one after the other, in an order that rotates from prompt to prompt; the others are idle meanwhile. Rates count decoding
only (see `benchmarks.measuring.measurement`). The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import grpc
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.measurement import Measurement
from benchmarks.measuring.prompts import Prompt, PromptFileError, read_prompts, spread
from benchmarks.measuring.served import ServedGeneration, measure_served
from benchmarks.measuring.speedup_report import PromptResult, summarize, summarize_categories, summary_table
from benchmarks.measuring.transformers_baseline import BaselineError, TransformersBaseline
from specdec.cli.service_group import ServiceFailedError, ServiceGroup
from specdec.cli.signals import StoppedBySignal, until_signal
from specdec.cli.three_services import ThreeServices
from specdec.client import GenerationClient, IncompleteGenerationError
from specdec.settings import DEFAULT_MODEL

Side = Literal["speculative", "k0", "transformers", "assisted"]
Item = TypeVar("Item")

_PROMPTS = Path(__file__).parent / "prompts.jsonl"
_WARM_UP = Prompt("warm-up", "warm-up", "Say hello.")
_WARM_UP_TOKENS = 8
_DRAIN_SECONDS = 2.0


@dataclass(frozen=True)
class SpeedupSettings:
    """What is measured. The same for every side, as far as it applies."""

    model: str
    drafter: Literal["ngram", "model"]
    draft_model: str | None
    num_draft_tokens: int
    max_new_tokens: int
    temperature: float
    seed: int
    num_threads: int
    """Threads of a forward pass on CPU: in the target service, in the draft service, and in transformers."""
    device: str
    dtype: str

    @property
    def assisted(self) -> str | None:
        """What transformers' assisted generation is, in words; None with K = 0."""
        if self.num_draft_tokens == 0:
            return None
        return "transformers with assistant_model" if self.drafter == "model" else "transformers with prompt lookup"

    @property
    def sides(self) -> tuple[Side, ...]:
        if self.num_draft_tokens == 0:
            return ("speculative", "transformers")
        return ("speculative", "k0", "transformers", "assisted")


class Bench:
    """Every side, ready to generate."""

    def __init__(self, settings: SpeedupSettings, client: GenerationClient, baseline: TransformersBaseline) -> None:
        self._settings = settings
        self._client = client
        self._baseline = baseline

    async def measure(self, prompt: Prompt, first_side: int, max_new_tokens: int | None = None) -> PromptResult:
        """One generation by each side, beginning with side number `first_side`."""
        token_ids = await self._baseline.tokenize(prompt.text)
        limit = self._settings.max_new_tokens if max_new_tokens is None else max_new_tokens
        served: dict[Side, ServedGeneration] = {}
        own: dict[Side, Measurement] = {}
        for side in rotated(self._settings.sides, first_side):
            if side in ("speculative", "k0"):
                served[side] = await self._served(
                    token_ids, limit, 0 if side == "k0" else self._settings.num_draft_tokens
                )
            else:
                own[side] = await self._transformers(token_ids, limit, assisted=side == "assisted")
        return PromptResult(
            prompt.category,
            served["speculative"],
            served["k0"].measurement if "k0" in served else None,
            own["transformers"],
            own.get("assisted"),
        )

    async def _served(self, token_ids: list[int], max_new_tokens: int, num_draft_tokens: int) -> ServedGeneration:
        return await measure_served(
            self._client,
            token_ids,
            max_new_tokens=max_new_tokens,
            temperature=self._settings.temperature,
            seed=self._settings.seed,
            num_draft_tokens=num_draft_tokens,
        )

    async def _transformers(self, token_ids: list[int], max_new_tokens: int, *, assisted: bool) -> Measurement:
        return await self._baseline.generate(
            token_ids,
            max_new_tokens=max_new_tokens,
            temperature=self._settings.temperature,
            seed=self._settings.seed,
            num_assistant_tokens=self._settings.num_draft_tokens if assisted else None,
        )


async def measure_all(settings: SpeedupSettings, prompts: list[Prompt], console: Console) -> list[PromptResult]:
    """Start every side, warm it up, and measure each prompt.

    Raises:
        ServiceFailedError: a service did not start.
        BaselineError: the transformers process failed.
        grpc.aio.AioRpcError: a generation failed.
    """
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(progress)
        task = progress.add_task("starting the services", total=len(prompts))
        group = await stack.enter_async_context(_services(settings))
        progress.update(task, description="starting transformers")
        baseline = await stack.enter_async_context(
            TransformersBaseline(
                model=settings.model,
                draft_model=settings.draft_model,
                num_threads=settings.num_threads,
                device=settings.device,
                dtype=settings.dtype,
            )
        )
        client = await stack.enter_async_context(GenerationClient(group.address))
        bench = Bench(settings, client, baseline)
        progress.update(task, description="warming up")
        await bench.measure(_WARM_UP, 0, _WARM_UP_TOKENS)
        results = []
        for index, prompt in enumerate(prompts):
            progress.update(task, description=f"{prompt.category} {prompt.question_id}")
            results.append(await bench.measure(prompt, index))
            progress.advance(task)
        return results


def rotated(items: tuple[Item, ...], first: int) -> Iterator[Item]:
    """All items, beginning with number `first` (counted on past the end)."""
    for offset in range(len(items)):
        yield items[(first + offset) % len(items)]


def report(settings: SpeedupSettings, results: list[PromptResult]) -> dict[str, Any]:
    """The result as JSON values."""
    greedy = settings.temperature == 0
    return {
        "benchmark": "speedup",
        "settings": asdict(settings),
        "assisted": settings.assisted,
        "machine": machine_facts(),
        "categories": summarize_categories(results, greedy=greedy),
        "overall": summarize(results, greedy=greedy),
    }


def _services(settings: SpeedupSettings) -> ServiceGroup:
    services = ThreeServices(
        model=settings.model,
        drafter=settings.drafter,
        draft_model=settings.draft_model,
        num_draft_tokens=settings.num_draft_tokens,
        device=settings.device,
        dtype=settings.dtype,
        num_threads=settings.num_threads,
        drain_seconds=_DRAIN_SECONDS,
    )
    return ServiceGroup(services.specs(), drain_seconds=_DRAIN_SECONDS)


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
    drafter: Annotated[Literal["ngram", "model"] | None, typer.Option(help="Drafter of the services.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Draft model; implies --drafter model.")] = None,
    num_draft_tokens: Annotated[
        int, typer.Option("--num-draft-tokens", "-k", min=0, help="Draft tokens a round (K), here and in transformers.")
    ] = 4,
    temperature: Annotated[float, typer.Option(min=0, help="Softmax temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every generation.")] = 0,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass on CPU, on every side.")] = 1,
    device: Annotated[str, typer.Option(help="Device of every model.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Element type of the weights of every model.")] = "auto",
) -> None:
    """Measure the services with drafts against themselves without, and against transformers."""
    chosen = drafter or ("model" if draft_model else "ngram")
    if (chosen == "model") != (draft_model is not None):
        raise typer.BadParameter("--drafter model and --draft-model go together")
    settings = SpeedupSettings(
        model=model,
        drafter=chosen,
        draft_model=draft_model,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        num_threads=num_threads,
        device=device,
        dtype=dtype,
    )
    try:
        read = read_prompts(prompts)
    except PromptFileError as error:
        raise typer.BadParameter(str(error)) from error
    taken = read if limit is None else spread(read, limit)
    results = _run(measure_all(settings, taken, Console(stderr=True)))
    result = report(settings, results)
    console = Console(highlight=False, soft_wrap=True)
    console.print(summary_table(result["categories"], result["overall"]))
    console.print(f"{num_threads} thread(s) in every process that runs a model; {len(taken)} prompts")
    if settings.assisted is not None:
        console.print(f"assisted: {settings.assisted}")
    line = json.dumps(result)
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


def _run(work: Coroutine[Any, Any, list[PromptResult]]) -> list[PromptResult]:
    """Do it; failures become one message and status 1."""
    try:
        return asyncio.run(until_signal(work))
    except StoppedBySignal as stopped:
        raise typer.Exit(stopped.exit_status) from stopped
    except grpc.aio.AioRpcError as error:
        message = f"{error.code().name}: {error.details()}"
        raise _failure(message) from error
    except (ServiceFailedError, BaselineError, IncompleteGenerationError, OSError) as error:
        raise _failure(str(error)) from error


def _failure(message: str) -> typer.Exit:
    typer.echo(f"benchmarks.speedup: {message}", err=True)
    return typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

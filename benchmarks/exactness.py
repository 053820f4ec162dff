"""Is greedy text through the services that of transformers' own `generate`, token for token?

    python -m benchmarks.exactness [--prompts FILE --json-out FILE --limit N --max-new-tokens 128 --dtype both]

For each element type transformers answers every prompt in this process, then the services answer the same prompts with
drafts. Where they differ, the gap between transformers' two largest logits at the first differing position says whether
it was a near-tie, which two correct computations may decide differently, or a fault. The last line of standard output
is the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import grpc
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.measuring.greedy_reference import GreedyReference, generate_references
from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.prompts import Prompt, PromptFileError, read_prompts, spread
from specdec.cli.drafter_kind import DrafterKind
from specdec.cli.service_group import ServiceFailedError, ServiceGroup
from specdec.cli.three_services import ThreeServices
from specdec.client import GenerationClient, IncompleteGenerationError
from specdec.settings import DEFAULT_MODEL
from specdec.v1 import generation_pb2, sampling_pb2

_PROMPTS = Path(__file__).parent / "prompts.jsonl"
_CONCURRENCY = 16
_DRAIN_SECONDS = 2.0


@dataclass(frozen=True)
class ExactnessSettings:
    """What is compared."""

    model: str
    drafter: DrafterKind
    draft_model: str | None
    num_draft_tokens: int
    max_new_tokens: int
    reference_batch_size: int
    """Prompts that transformers generates together, padded on the left."""
    num_threads: int
    device: str


@dataclass(frozen=True)
class Difference:
    """One prompt whose two answers differ."""

    question_id: str
    position: int
    """First generated token that differs, from 0."""
    top2_gap: float | None
    """How far transformers' largest logit was above the second one there. None: one answer is the beginning of the
    other, which no near-tie explains."""


@dataclass(frozen=True)
class Comparison:
    """All prompts in one element type."""

    num_prompts: int
    num_equal: int
    differences: tuple[Difference, ...]


def compare(
    prompts: Sequence[Prompt], references: Sequence[GreedyReference], answers: Sequence[Sequence[int]]
) -> Comparison:
    """Hold the services' answers against transformers'."""
    differences = []
    for prompt, reference, answer in zip(prompts, references, answers, strict=True):
        if list(answer) != reference.token_ids:
            pairs = zip(answer, reference.token_ids, strict=False)
            agreed = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
            position = min(len(answer), len(reference.token_ids)) if agreed is None else agreed
            gap = reference.top2_gaps[position] if agreed is not None else None
            differences.append(Difference(prompt.question_id, position, gap))
    return Comparison(len(prompts), len(prompts) - len(differences), tuple(differences))


async def answers_of_services(
    settings: ExactnessSettings, dtype: str, prompt_ids: Sequence[list[int]], progress: Progress, task: TaskID
) -> list[list[int]]:
    """Greedy answers with drafts, several requests at a time.

    Raises:
        ServiceFailedError: a service did not start.
        grpc.aio.AioRpcError: a generation failed.
    """
    services = ThreeServices(
        model=settings.model,
        drafter=settings.drafter,
        draft_model=settings.draft_model,
        device=settings.device,
        dtype=dtype,
        num_threads=settings.num_threads,
        drain_seconds=_DRAIN_SECONDS,
    )
    running = asyncio.Semaphore(_CONCURRENCY)

    async def answer(client: GenerationClient, token_ids: list[int]) -> list[int]:
        request = generation_pb2.GenerateRequest(
            token_ids=generation_pb2.TokenIds(ids=token_ids),
            sampling=sampling_pb2.SamplingParams(temperature=0.0),
            max_new_tokens=settings.max_new_tokens,
            num_draft_tokens=settings.num_draft_tokens,
        )
        async with running:
            result = await client.collect(request)
        progress.advance(task)
        return result.token_ids

    async with (
        ServiceGroup(services.specs(), drain_seconds=_DRAIN_SECONDS) as group,
        GenerationClient(group.address) as client,
    ):
        return list(await asyncio.gather(*(answer(client, token_ids) for token_ids in prompt_ids)))


def measure(settings: ExactnessSettings, dtype: str, prompts: Sequence[Prompt], console: Console) -> Comparison:
    """Both sides in one element type, one after the other."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{dtype}: transformers", total=len(prompts))
        references = generate_references(
            settings.model,
            [prompt.text for prompt in prompts],
            device=settings.device,
            dtype=dtype,
            max_new_tokens=settings.max_new_tokens,
            batch_size=settings.reference_batch_size,
            num_threads=settings.num_threads,
            on_done=lambda count: progress.advance(task, count),
        )
        task = progress.add_task(f"{dtype}: services", total=len(prompts))
        prompt_ids = [reference.prompt_ids for reference in references]
        answers = asyncio.run(answers_of_services(settings, dtype, prompt_ids, progress, task))
    return compare(prompts, references, answers)


def comparison_table(comparisons: dict[str, Comparison]) -> Table:
    """For people."""
    table = Table("dtype", "prompts", "equal", "largest top-2 gap at a difference")
    for dtype, comparison in comparisons.items():
        gaps = [difference.top2_gap for difference in comparison.differences]
        largest = "no difference"
        if gaps:
            largest = "none: a length differs" if None in gaps else f"{max(gap for gap in gaps if gap is not None):.2g}"
        table.add_row(dtype, str(comparison.num_prompts), str(comparison.num_equal), largest)
    return table


def main(
    prompts: Annotated[
        Path, typer.Option(help="JSON lines with question_id, category and turns, of which the first is used.")
    ] = _PROMPTS,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Take only so many prompts, spread evenly over the categories.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens of an answer.")] = 128,
    dtype: Annotated[
        Literal["float32", "bfloat16", "both"], typer.Option(help="Element type of the weights.")
    ] = "both",
    model: Annotated[str, typer.Option(help="Target model.")] = DEFAULT_MODEL,
    drafter: Annotated[Literal["ngram", "model", "none"], typer.Option(help="Drafter of the services.")] = "ngram",
    draft_model: Annotated[str | None, typer.Option(help="Draft model; needs --drafter model.")] = None,
    num_draft_tokens: Annotated[int, typer.Option("--num-draft-tokens", "-k", min=0, help="Draft tokens a round.")] = 4,
    reference_batch_size: Annotated[
        int, typer.Option(min=1, help="Prompts that transformers generates together, padded on the left.")
    ] = 1,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass on CPU, on both sides.")] = 2,
    device: Annotated[str, typer.Option(help="Device of every model.")] = "auto",
) -> None:
    """Compare greedy text through the services with transformers' own."""
    if (drafter == "model") != (draft_model is not None):
        raise typer.BadParameter("--drafter model and --draft-model go together")
    settings = ExactnessSettings(
        model=model,
        drafter=drafter,
        draft_model=draft_model,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=max_new_tokens,
        reference_batch_size=reference_batch_size,
        num_threads=num_threads,
        device=device,
    )
    try:
        read = read_prompts(prompts)
    except PromptFileError as error:
        raise typer.BadParameter(str(error)) from error
    taken = read if limit is None else spread(read, limit)
    dtypes = ("float32", "bfloat16") if dtype == "both" else (dtype,)
    try:
        comparisons = {name: measure(settings, name, taken, Console(stderr=True)) for name in dtypes}
    except grpc.aio.AioRpcError as error:
        raise _failure(f"{error.code().name}: {error.details()}") from error
    except (ServiceFailedError, IncompleteGenerationError, OSError) as error:
        raise _failure(str(error)) from error
    Console(highlight=False).print(comparison_table(comparisons))
    result = {
        "benchmark": "exactness",
        "settings": asdict(settings),
        "machine": machine_facts(),
        **{name: asdict(comparison) for name, comparison in comparisons.items()},
    }
    line = json.dumps(result)
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


def _failure(message: str) -> typer.Exit:
    typer.echo(f"benchmarks.exactness: {message}", err=True)
    return typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

"""How much faster speculative decoding makes one client, measured against the same services without drafts and against
transformers' own `generate`.

    python -m benchmarks.speedup [--prompts FILE --json-out FILE --limit 26 --drafter all --num-draft-tokens 4 ...]

The services are real processes on this machine, and so is transformers. For each prompt every side generates once,
one after the other, in an order that rotates from prompt to prompt; the others are idle meanwhile. Several drafters are
sides of one run, at one target. Rates count decoding only (see `benchmarks.measuring.measurement`). The last line of
standard output is the result as JSON.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.measuring.deployment import Deployment
from benchmarks.measuring.drafters import HELP, choose_draft_model, parse_drafters
from benchmarks.measuring.machine import machine_facts
from benchmarks.measuring.prompts import Prompt, PromptFileError, read_prompts, spread
from benchmarks.measuring.running import run_or_exit
from benchmarks.measuring.speedup_report import PromptResult, summarize, summarize_categories, summary_table
from benchmarks.measuring.speedup_sides import Bench, SpeedupSettings
from benchmarks.measuring.transformers_baseline import BaselineError, TransformersBaseline
from draft_service.trained_draft import reads_features
from specdec.cli.drafter_kind import DrafterKind
from specdec.cli.service_group import ServiceGroup
from specdec.cli.three_services import ThreeServices
from specdec.client import GenerationClient
from specdec.settings import DEFAULT_MODEL

Item = TypeVar("Item")

_PROMPTS = Path(__file__).parent / "prompts.jsonl"
_WARM_UP = Prompt("warm-up", "warm-up", "Say hello.")
_WARM_UP_TOKENS = 8
_DRAIN_SECONDS = 2.0


async def measure_all(
    settings: SpeedupSettings, prompts: list[Prompt], console: Console
) -> list[dict[DrafterKind, PromptResult]]:
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
        deployment = Deployment.plan(_services(settings), settings.drafters, settings.draft_model)
        await stack.enter_async_context(ServiceGroup(deployment.specs, drain_seconds=_DRAIN_SECONDS))
        progress.update(task, description="starting transformers")
        baseline = await stack.enter_async_context(
            TransformersBaseline(
                model=settings.model,
                draft_model=None if settings.reads_features else settings.draft_model,
                num_threads=settings.num_threads,
                device=settings.device,
                dtype=settings.dtype,
            )
        )
        clients = {
            drafter: await stack.enter_async_context(GenerationClient(address))
            for drafter, address in deployment.addresses.items()
        }
        bench = Bench(settings, clients, baseline)
        progress.update(task, description="warming up")
        await bench.measure(_WARM_UP, 0, _WARM_UP_TOKENS)
        results = []
        for index, prompt in enumerate(prompts):
            progress.update(task, description=f"{prompt.category} {prompt.question_id}")
            results.append(await bench.measure(prompt, index))
            progress.advance(task)
        return results


def report(settings: SpeedupSettings, results: list[dict[DrafterKind, PromptResult]]) -> dict[str, Any]:
    """The result as JSON values; what is not under `drafters` is of the first of them."""
    greedy = settings.temperature == 0
    drafters = {}
    for drafter in settings.drafters:
        of_drafter = [result[drafter] for result in results]
        drafters[drafter] = {
            "assisted": settings.assisted_words(drafter),
            "categories": summarize_categories(of_drafter, greedy=greedy),
            "overall": summarize(of_drafter, greedy=greedy),
        }
    return {
        "benchmark": "speedup",
        "settings": asdict(settings),
        "machine": machine_facts(),
        "drafter": settings.drafters[0],
        **drafters[settings.drafters[0]],
        "drafters": drafters,
    }


def _services(settings: SpeedupSettings) -> ThreeServices:
    return ThreeServices(
        model=settings.model,
        num_draft_tokens=None if settings.is_auto else settings.num_draft_tokens,
        device=settings.device,
        dtype=settings.dtype,
        num_threads=settings.num_threads,
        drain_seconds=_DRAIN_SECONDS,
    )


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
        str | None,
        typer.Option(help="Draft model; default: the one that comes with the target."),
    ] = None,
    num_draft_tokens: Annotated[
        int, typer.Option("--num-draft-tokens", "-k", min=0, help="Draft tokens a round (K), here and in transformers.")
    ] = 4,
    auto: Annotated[
        bool, typer.Option("--auto", help="Let the orchestrator choose K; --num-draft-tokens is that of transformers.")
    ] = False,
    temperature: Annotated[float, typer.Option(min=0, help="Softmax temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every generation.")] = 0,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass on CPU, on every side.")] = 1,
    device: Annotated[str, typer.Option(help="Device of every model.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Element type of the weights of every model.")] = "auto",
) -> None:
    """Measure the services with drafts against themselves without, and against transformers."""
    drafters = parse_drafters(drafter, draft_model)
    named = choose_draft_model(drafters, model, draft_model)
    settings = SpeedupSettings(
        model=model,
        drafters=drafters,
        draft_model=named,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        num_threads=num_threads,
        device=device,
        dtype=dtype,
        is_auto=auto,
        reads_features=named is not None and reads_features(named),
    )
    try:
        read = read_prompts(prompts)
    except PromptFileError as error:
        raise typer.BadParameter(str(error)) from error
    taken = read if limit is None else spread(read, limit)
    results = run_or_exit("speedup", measure_all(settings, taken, Console(stderr=True)), BaselineError)
    result = report(settings, results)
    console = Console(highlight=False, soft_wrap=True)
    for name, of_drafter in result["drafters"].items():
        console.print(summary_table(name, of_drafter["categories"], of_drafter["overall"]))
        if of_drafter["assisted"] is not None:
            console.print(f"assisted: {of_drafter['assisted']}")
    console.print(f"{num_threads} thread(s) in every process that runs a model; {len(taken)} prompts")
    line = json.dumps(result)
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    typer.run(main)

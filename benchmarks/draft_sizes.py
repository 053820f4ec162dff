"""Trained drafts side by side: what each costs, how often it guesses right, and the tokens/s to expect of both.

    python -m benchmarks.draft_sizes DIR [DIR ...] [--model NAME --num-threads 1 --json-out FILE]

For choosing the size of a draft: train several on one text (`specdec train-draft --data`), then compare them.
Acceptance is read from each draft's report.json: of the prompts it was measured with, or of held-out text if there were
none. Steps are timed here, of all drafts and the target in turns. One row a draft, the best first; the last line of
standard output is the result as JSON. Without a directory the drafts that come with the package are taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.measuring.machine import machine_facts
from draft_service.feature_runner import make_runner
from draft_service.shipped_drafts import shipped_drafts
from draft_service.trained_draft import load_trained_draft
from draft_service.training.report import HELD_OUT, OVERALL
from draft_service.training.step_times import Pass, step_seconds
from specdec.models.errors import ModelError
from specdec.models.loading import load_model
from specdec.runner.runner import ModelRunner
from specdec.settings import DEFAULT_MODEL

_TARGET = "target"
_WINDOW = 4
"""Draft steps that are timed in a row."""


@dataclass(frozen=True)
class DraftSize:
    """One draft."""

    name: str
    layers: tuple[int, ...]
    draft_vocab_size: int
    size_bytes: int
    tokens_visited: int
    measured_with: str
    """Prompts, or held-out text."""
    step_ratio: float
    """Of its step to the target's."""
    mean_acceptance_length: dict[str, float]
    """By K, at the temperature compared."""
    predicted_tokens_per_second: dict[str, float]
    """By K, on this machine, without any network."""

    @property
    def best(self) -> str:
        """K with the most tokens/s."""
        return max(self.predicted_tokens_per_second, key=lambda count: self.predicted_tokens_per_second[count])


def compare(
    reports: Mapping[str, Mapping[str, Any]], seconds: Mapping[tuple[str, int], float], temperature: float
) -> list[DraftSize]:
    """All drafts, that with the most tokens/s at its best K first.

    Args:
        reports: content of each draft's report.json, by its name.
        seconds: of a pass, by the draft's name, or `target`, and its rows.
        temperature: one of those in the reports.
    """
    sizes = []
    for name, report in reports.items():
        entries = [entry for entry in report["acceptance"] if entry["temperature"] == temperature]
        category = OVERALL if any(entry["category"] == OVERALL for entry in entries) else HELD_OUT
        lengths = {
            entry["num_draft_tokens"]: entry["mean_acceptance_length"]
            for entry in entries
            if entry["category"] == category
        }
        training = report["training"]
        sizes.append(
            DraftSize(
                name=name,
                layers=tuple(training["layers"]),
                draft_vocab_size=training["draft_vocab_size"],
                size_bytes=report["size_bytes"],
                tokens_visited=training["tokens_visited"],
                measured_with=category,
                step_ratio=seconds[name, 1] / seconds[_TARGET, 1],
                mean_acceptance_length={str(count): length for count, length in lengths.items()},
                predicted_tokens_per_second={
                    str(count): length / (count * seconds[name, 1] + seconds[_TARGET, count + 1])
                    for count, length in lengths.items()
                },
            )
        )
    return sorted(sizes, key=lambda size: -size.predicted_tokens_per_second[size.best])


def size_table(sizes: Sequence[DraftSize], plain_tokens_per_second: float) -> Table:
    """In Markdown, for docs/experiments.md."""
    table = Table(box=box.MARKDOWN)
    for column in ("draft", "layers", "vocabulary", "MB", "step / target's", "measured with", "K", "length"):
        table.add_column(column)
    table.add_column("tokens/s")
    table.add_column("over the target alone")
    for size in sizes:
        best = size.predicted_tokens_per_second[size.best]
        table.add_row(
            size.name,
            ", ".join(map(str, size.layers)),
            f"{size.draft_vocab_size:,}",
            f"{size.size_bytes / 1e6:.1f}",
            f"{size.step_ratio:.3f}",
            size.measured_with,
            size.best,
            f"{size.mean_acceptance_length[size.best]:.2f}",
            f"{best:.1f}",
            f"{best / plain_tokens_per_second:.2f}",
        )
    return table


def measure(directories: Mapping[str, Path], model: str, device: str) -> dict[tuple[str, int], float]:
    """Times of the steps that `compare` needs.

    Raises:
        ModelError: a model cannot be loaded, or a draft is for another target.
    """
    target = load_model(model, device=device, linear_kernel="auto")
    drafts = {
        name: load_trained_draft(str(directory), target=model, device=device) for name, directory in directories.items()
    }
    counts = {entry["num_draft_tokens"] for path in directories.values() for entry in _report(path)["acceptance"]}
    passes = [Pass(name, make_runner(draft), 1, in_a_row=_WINDOW) for name, draft in drafts.items()]
    runner = ModelRunner(target.model, target.info.vocab_size)
    passes += [Pass(_TARGET, runner, rows) for rows in sorted({1, *(count + 1 for count in counts)})]
    return step_seconds(passes, target.info.max_context_length)


def main(
    directories: Annotated[list[Path] | None, typer.Argument(metavar="[DIR]...", help="Trained drafts.")] = None,
    model: Annotated[str, typer.Option(help="Their target.")] = DEFAULT_MODEL,
    temperature: Annotated[float, typer.Option(help="Temperature to compare at; one of those in the reports.")] = 0.0,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass on CPU.")] = 1,
    device: Annotated[str, typer.Option(help="Device of every model.")] = "auto",
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
) -> None:
    """Compare trained drafts of one target."""
    named = {str(directory): directory for directory in directories} if directories else shipped_drafts()
    if not named:
        typer.echo("benchmarks.draft_sizes: no draft comes with the package; name the directories of some", err=True)
        return
    torch.set_num_threads(num_threads)
    try:
        seconds = measure(named, model, device)
        sizes = compare({name: _report(directory) for name, directory in named.items()}, seconds, temperature)
    except ModelError as error:
        typer.echo(f"benchmarks.draft_sizes: {error}", err=True)
        raise typer.Exit(1) from error
    plain = 1 / seconds[_TARGET, 1]
    console = Console(highlight=False, soft_wrap=True)
    console.print(size_table(sizes, plain))
    line = json.dumps(
        {
            "benchmark": "draft_sizes",
            "model": model,
            "temperature": temperature,
            "num_threads": num_threads,
            "machine": machine_facts(),
            "target_tokens_per_second": plain,
            "drafts": [asdict(size) for size in sizes],
        }
    )
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


def _report(directory: Path) -> dict[str, Any]:
    path = directory / "report.json"
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); name the directory of a finished run") from error
    return report


if __name__ == "__main__":
    typer.run(main)

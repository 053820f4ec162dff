"""What the sampling rules cost: choosing tokens for a window of 8 rows, against the forward pass that gives the rows.

    python -m benchmarks.sampling [--model NAME --rows 8 --repeats 30 --json-out FILE]

Every row is judged, as after full acceptance, which is the most that a window can cost. Rules and forward pass are
timed in turns; medians. The shortcuts are timed against what they stand for: noise for every token, and a top-p that
sorts the vocabulary. The last line of standard output is the result as JSON.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import TopPLogitsWarper

from benchmarks.measuring.machine import machine_facts
from specdec.models.loading import load_model
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.noise import (
    Stream,
    gumbel_argmax_of_rows,
    noise_keys,
    plain_argmax_of_rows,
    seed_key,
)
from specdec.sampling.params import SamplingParams
from specdec.sampling.processors import ShortTopPLogitsWarper
from specdec.settings import DEFAULT_MODEL

_CONTEXT = 128
_RULES = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "temperature 0.8, top-p 0.95": SamplingParams(temperature=0.8, top_p=0.95),
    "temperature 0.8, top-k 50": SamplingParams(temperature=0.8, top_k=50),
    "temperature 0.8, min-p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
    "temperature 0.8, typical-p 0.9": SamplingParams(temperature=0.8, typical_p=0.9),
    "temperature 0.8, all penalties": SamplingParams(
        temperature=0.8, repetition_penalty=1.1, frequency_penalty=0.5, presence_penalty=0.5
    ),
}


def median_seconds(steps: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median time of each step; the steps take turns, so that a slow moment of the machine hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in list(steps.values()) * 3:
        step()
    for _ in range(repeats):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in times.items()}


def main(
    model: Annotated[str, typer.Option(help="Target model.")] = DEFAULT_MODEL,
    rows: Annotated[int, typer.Option(min=2, help="Rows of the window: draft tokens and one.")] = 8,
    repeats: Annotated[int, typer.Option(min=3, help="Measurements of each step.")] = 30,
    num_threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 2,
    json_out: Annotated[Path | None, typer.Option(help="File for the result.")] = None,
) -> None:
    """Time the sampling rules."""
    torch.set_num_threads(num_threads)
    loaded = load_model(model)
    runner = ModelRunner(loaded.model, loaded.info.vocab_size)
    cache = SequenceCache()
    history = [token % loaded.info.vocab_size for token in range(100, 100 + _CONTEXT)]
    runner.forward([Work(cache, history, 0)])
    window = history[:rows]

    def forward() -> torch.Tensor:
        (logits,) = runner.forward([Work(cache, window, rows)])
        cache.truncate(_CONTEXT)
        return logits

    logits = forward()

    def choose_all(params: SamplingParams) -> Callable[[], object]:
        chooser = TokenChooser(params, 16, loaded.model.device)
        return lambda: [chooser.choose(row, history, window[:index]) for index, row in enumerate(logits)]

    no_history = torch.zeros((1, 0), dtype=torch.long)
    keys = noise_keys([seed_key(1)], [2], Stream.TARGET)
    row = logits[:1] / 0.8
    seconds = median_seconds(
        {
            "forward": forward,
            **{name: choose_all(params) for name, params in _RULES.items()},
            "noise for every token": lambda: plain_argmax_of_rows(row, keys),
            "noise where it can matter": lambda: gumbel_argmax_of_rows(row, keys),
            "top-p by sorting": lambda: TopPLogitsWarper(0.95)(no_history, row),
            "top-p by the top 1024": lambda: ShortTopPLogitsWarper(0.95)(no_history, row),  # type: ignore[arg-type]
        },
        repeats,
    )
    table = Table("step", "ms", f"share of the forward pass of {rows} rows")
    for name, each in seconds.items():
        share = f"{each / seconds['forward']:.1%}" if name in _RULES else ""
        table.add_row(name, f"{each * 1e3:.2f}", share)
    Console(highlight=False).print(table)
    result = {
        "benchmark": "sampling",
        "model": model,
        "rows": rows,
        "num_threads": num_threads,
        "machine": machine_facts(),
        "seconds": seconds,
        "share_of_forward": {name: seconds[name] / seconds["forward"] for name in _RULES},
    }
    line = json.dumps(result)
    if json_out is not None:
        json_out.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    typer.run(main)

"""What the measurements of `benchmarks.speedup` add up to, as JSON values and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from benchmarks.measuring.measurement import Measurement
from benchmarks.measuring.served import ServedGeneration

Summary = dict[str, float | int | None]
"""Names and values of one category, or of all prompts; None where a value does not apply."""


@dataclass(frozen=True)
class PromptResult:
    """The same prompt on every side."""

    category: str
    speculative: ServedGeneration
    k0: Measurement | None
    """The same services with K = 0. None if that is what `speculative` is."""
    transformers: Measurement
    assisted: Measurement | None
    """None if nothing assists, with K = 0."""


def summarize(results: Sequence[PromptResult], *, greedy: bool) -> Summary:
    """Sums over prompts, and ratios of sums: long generations weigh more than short ones.

    `greedy`: temperature 0, where transformers should generate the same tokens; above, its noise is another.
    """
    stats = [result.speculative.stats for result in results]
    num_rounds = sum(entry.num_rounds for entry in stats)
    num_draft_tokens = sum(entry.num_draft_tokens for entry in stats)
    num_accepted_tokens = sum(entry.num_accepted_tokens for entry in stats)
    overheads = [seconds for result in results for seconds in result.speculative.round_overhead_seconds]
    rate = _tokens_per_second(result.speculative.measurement for result in results)
    return {
        "num_prompts": len(results),
        "num_generated_tokens": sum(len(result.speculative.measurement.token_ids) for result in results),
        "mean_acceptance_length": 1 + num_accepted_tokens / num_rounds if num_rounds else None,
        "acceptance_rate": num_accepted_tokens / num_draft_tokens if num_draft_tokens else None,
        "tokens_per_second": rate,
        "speedup_over_k0": _ratio(rate, _tokens_per_second(result.k0 for result in results)),
        "speedup_over_transformers": _ratio(rate, _tokens_per_second(result.transformers for result in results)),
        "speedup_over_assisted": _ratio(rate, _tokens_per_second(result.assisted for result in results)),
        "round_overhead_seconds_p50": statistics.median(overheads) if overheads else None,
        "num_same_tokens_as_k0": _num_same(results, [result.k0 for result in results]),
        "num_same_tokens_as_transformers": (
            _num_same(results, [result.transformers for result in results]) if greedy else None
        ),
    }


def summarize_categories(results: Sequence[PromptResult], *, greedy: bool) -> dict[str, Summary]:
    """One summary for each category, in order of appearance."""
    categories: dict[str, list[PromptResult]] = {}
    for result in results:
        categories.setdefault(result.category, []).append(result)
    return {category: summarize(members, greedy=greedy) for category, members in categories.items()}


def summary_table(drafter: str, categories: Mapping[str, Summary], overall: Summary) -> Table:
    """A row for each category and one for all prompts."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, title=f"{drafter}: decoding by the services, prefill left out")
    table.add_column("category", no_wrap=True)
    columns = ("prompts", "acc.\nlength", "acc.\nrate", "tok/s", "over\nK = 0", "over\ntransf.", "over\nassisted")
    for name in (*columns, "overhead\nms a round"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, summary in (*categories.items(), ("all", overall)):
        overhead = summary["round_overhead_seconds_p50"]
        table.add_row(
            name,
            str(summary["num_prompts"]),
            _format(summary["mean_acceptance_length"], ".2f"),
            _format(summary["acceptance_rate"], ".0%"),
            _format(summary["tokens_per_second"], ".1f"),
            _format(summary["speedup_over_k0"], ".2f"),
            _format(summary["speedup_over_transformers"], ".2f"),
            _format(summary["speedup_over_assisted"], ".2f"),
            _format(None if overhead is None else overhead * 1000, ".2f"),
            end_section=list(categories)[-1:] == [name],
        )
    return table


def _tokens_per_second(measurements: Iterable[Measurement | None]) -> float | None:
    made = [measurement for measurement in measurements if measurement is not None]
    seconds = sum(measurement.decode_seconds for measurement in made)
    return sum(measurement.num_decoded_tokens for measurement in made) / seconds if seconds > 0 else None


def _ratio(rate: float | None, baseline: float | None) -> float | None:
    return rate / baseline if rate is not None and baseline else None


def _num_same(results: Sequence[PromptResult], others: Sequence[Measurement | None]) -> int | None:
    """Prompts for which the other side generated the same token ids."""
    pairs = [
        result.speculative.measurement.token_ids == other.token_ids
        for result, other in zip(results, others, strict=True)
        if other is not None
    ]
    return sum(pairs) if pairs else None


def _format(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)

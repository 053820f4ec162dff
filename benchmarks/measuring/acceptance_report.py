"""Counts of rounds, by category and by where the draft tokens came from, as JSON values and as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from rich import box
from rich.table import Table

from specdec.cli.drafter_kind import DrafterKind
from specdec.client import GenerationResult
from specdec.draft_source import source_name


@dataclass
class RoundCounts:
    """Sums over rounds."""

    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def add(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """One more round."""
        self.num_rounds += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens

    def summary(self) -> RoundSummary:
        """What is reported; the mean acceptance length counts the recovered or bonus token."""
        return {
            "num_rounds": self.num_rounds,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "mean_acceptance_length": (1 + self.num_accepted_tokens / self.num_rounds) if self.num_rounds else None,
            "acceptance_rate": self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None,
        }


class RoundSummary(TypedDict):
    """Names and values of some rounds; None where there were none."""

    num_rounds: int
    num_draft_tokens: int
    num_accepted_tokens: int
    mean_acceptance_length: float | None
    acceptance_rate: float | None


@dataclass
class PromptCounts:
    """Rounds of some prompts."""

    num_prompts: int = 0
    num_fallback_rounds: int = 0
    """Rounds that went without the draft service; acceptance is understated if there are any."""
    rounds: RoundCounts = field(default_factory=RoundCounts)
    sources: defaultdict[str, RoundCounts] = field(default_factory=lambda: defaultdict(RoundCounts))
    """Rounds with draft tokens, by where these came from."""

    def add(self, result: GenerationResult) -> None:
        """One more prompt."""
        assert result.finished is not None  # noqa: S101 - the client raises otherwise
        self.num_prompts += 1
        self.num_fallback_rounds += result.finished.stats.num_fallback_rounds
        for report in result.rounds:
            if report.round == 0:
                continue  # The prefill.
            self.rounds.add(report.num_draft_tokens, report.num_accepted_tokens)
            if report.num_draft_tokens:
                source = self.sources[source_name(report.draft_source)]
                source.add(report.num_draft_tokens, report.num_accepted_tokens)

    def summary(self) -> PromptSummary:
        """What is reported."""
        return {
            "num_prompts": self.num_prompts,
            "num_fallback_rounds": self.num_fallback_rounds,
            **self.rounds.summary(),
            "sources": {name: counts.summary() for name, counts in sorted(self.sources.items())},
        }


class PromptSummary(RoundSummary):
    """Of some prompts."""

    num_prompts: int
    num_fallback_rounds: int
    sources: dict[str, RoundSummary]


@dataclass(frozen=True)
class Condition:
    """What a request is asked with."""

    drafter: DrafterKind
    temperature: float
    num_draft_tokens: int


@dataclass
class Cell:
    """All prompts under one condition."""

    condition: Condition
    overall: PromptCounts = field(default_factory=PromptCounts)
    categories: defaultdict[str, PromptCounts] = field(default_factory=lambda: defaultdict(PromptCounts))

    def add(self, category: str, result: GenerationResult) -> None:
        """One more prompt."""
        self.overall.add(result)
        self.categories[category].add(result)

    def report(self) -> dict[str, object]:
        """JSON values."""
        return {
            "drafter": self.condition.drafter,
            "temperature": self.condition.temperature,
            "num_draft_tokens": self.condition.num_draft_tokens,
            "overall": self.overall.summary(),
            "categories": {name: counts.summary() for name, counts in self.categories.items()},
        }


def acceptance_table(drafter: DrafterKind, cells: Sequence[Cell], categories: Sequence[str]) -> Table:
    """Mean acceptance length: a row for each category and one for all prompts, a column for each condition."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, title=f"{drafter}: mean acceptance length")
    table.add_column("category", no_wrap=True)
    own = [cell for cell in cells if cell.condition.drafter == drafter]
    for cell in own:
        heading = f"T {cell.condition.temperature:g}\nK {cell.condition.num_draft_tokens}"
        table.add_column(heading, justify="right", no_wrap=True)
    for category in categories:
        table.add_row(category, *(_length(cell.categories[category]) for cell in own))
    table.add_section()
    table.add_row("all", *(_length(cell.overall) for cell in own))
    return table


def _length(counts: PromptCounts) -> str:
    length = counts.rounds.summary()["mean_acceptance_length"]
    return "–" if length is None else f"{length:.2f}"

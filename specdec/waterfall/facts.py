"""What a request adds up to, in words."""

from __future__ import annotations

from typing import NamedTuple

from specdec.waterfall.parts import PARTS
from specdec.waterfall.request_view import RequestView

_LEAST_HIDDEN_SECONDS = 0.001
"""Less is what clocks of several processes differ by."""


class Fact(NamedTuple):
    """A figure and what it is."""

    label: str
    value: str
    detail: str = ""


class PartTotal(NamedTuple):
    """A part of all rounds together."""

    name: str
    label: str
    seconds: float
    share: float
    """Of the time of all rounds."""

    @property
    def share_text(self) -> str:
        """In per cent."""
        return f"{self.share:.0%}" if self.share >= 0.005 else "<1%"


def duration_text(seconds: float) -> str:
    """With its unit: milliseconds below one second."""
    if seconds == 0:
        return "0"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def facts(request: RequestView) -> list[Fact]:
    """Those that are known."""
    found = []
    if request.num_generated_tokens is not None:
        found.append(Fact("tokens", str(request.num_generated_tokens), _prompt(request)))
    if request.duration_seconds is not None:
        found.append(Fact("duration", duration_text(request.duration_seconds)))
    if request.ttft_seconds is not None:
        found.append(Fact("TTFT", duration_text(request.ttft_seconds), "first token"))
    if request.tpot_seconds is not None:
        found.append(Fact("TPOT", duration_text(request.tpot_seconds), "each token after it"))
    fallbacks = f"{request.num_fallback_rounds} without drafts that were wanted" if request.num_fallback_rounds else ""
    found.append(Fact("rounds", str(request.num_rounds), fallbacks))
    if request.acceptance_rate is not None:
        counted = f"{request.num_accepted_tokens} of {request.num_draft_tokens} draft tokens"
        found.append(Fact("acceptance rate", f"{request.acceptance_rate:.0%}", counted))
    if request.mean_acceptance_length is not None:
        found.append(Fact("mean acceptance length", f"{request.mean_acceptance_length:.2f}", "bonus counted"))
    return found


def title(request: RequestView) -> str:
    """One line that names it."""
    named = f"request {request.request_id or 'without an id'}"
    ended = ", ".join(filter(None, (request.status, request.finish_reason)))
    several = f"{request.num_prefills} completions, rounds of all" if request.num_prefills > 1 else ""
    return " · ".join(filter(None, (named, request.model, request.acceptance_rule, ended, several)))


def part_totals(request: RequestView) -> list[PartTotal]:
    """Of the parts that there are, in their order."""
    totals = request.part_seconds
    whole = sum(totals.values())
    return [
        PartTotal(part.name, part.label, totals[part.name], totals[part.name] / whole)
        for part in PARTS
        if part.name in totals
    ]


def hidden_text(request: RequestView) -> str:
    """What was done before it was waited for, in a sentence; empty: next to nothing."""
    if request.hidden_seconds < _LEAST_HIDDEN_SECONDS:
        return ""
    return (
        f"{duration_text(request.hidden_seconds)} of drafting and verification were hidden: done before they were "
        "waited for, and not in the bars."
    )


def _prompt(request: RequestView) -> str:
    if request.num_prompt_tokens is None:
        return ""
    cached = f", {request.num_cached_tokens} cached" if request.num_cached_tokens else ""
    return f"prompt {request.num_prompt_tokens}{cached}"

"""What a window of time under load adds up to, as JSON values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.deployment.pass_log import Pass, busy_seconds
from benchmarks.measuring.closed_loop import RequestRecord

Figures = dict[str, float | None]
"""Names and values; None where a value does not apply."""


@dataclass(frozen=True)
class Goals:
    """What a request must keep to count for goodput."""

    ttft_seconds: float
    inter_token_seconds: float
    """Mean over the tokens of the request after the first (TPOT)."""


@dataclass(frozen=True)
class LoadWindow:
    """What was seen of a time under load."""

    began: float
    """Seconds of `time.perf_counter`."""
    ended: float
    records: Sequence[RequestRecord]
    """Of all requests that were sent before its end, those of the warm-up included."""
    target_passes: Sequence[Pass]
    draft_passes: Sequence[Pass]
    cpu_seconds: Mapping[str, float]
    """CPU time within the window, by process."""


def window_figures(window: LoadWindow, goals: Goals, *, time_scale: float = 1.0) -> Figures:
    """Rates, latencies, and where the time went.

    Tokens, rounds and passes count where they fall into the window; a request counts where its first token (TTFT) or
    its last (goodput) does. A token's inter-token latency is the wait for the delta that brought it, divided by the
    tokens that came with it: a delta of three tokens after 60 ms counts as three times 20 ms.

    Args:
        window: what was seen.
        goals: of goodput, on the clock of the result.
        time_scale: a simulated second lasted so many real ones; the result is on the simulated clock.
    """
    began, ended = window.began, window.ended
    seconds = (ended - began) / time_scale
    deltas = [
        (before, delta)
        for record in window.records
        for before, delta in zip([None, *record.deltas], record.deltas, strict=False)
        if began <= delta.arrived < ended
    ]
    gaps = [(delta.arrived - before.arrived, delta.num_tokens) for before, delta in deltas if before is not None]
    ttfts = [
        record.ttft_seconds / time_scale
        for record in window.records
        if record.ttft_seconds is not None and began <= record.deltas[0].arrived < ended
    ]
    inter_token = [gap / count / time_scale for gap, count in gaps for _ in range(count)]
    completed = [
        record for record in window.records if record.finished is not None and began <= record.finished < ended
    ]
    good = [record for record in completed if _keeps(record, goals, time_scale)]
    rounds = [delta for _, delta in deltas if delta.round > 0]
    drafted = sum(delta.num_draft_tokens for delta in rounds)
    accepted = sum(delta.num_accepted_tokens for delta in rounds)
    prompt_tokens = sum(record.num_prompt_tokens for record in completed)
    figures: Figures = {
        "tokens_per_second": sum(delta.num_tokens for _, delta in deltas) / seconds,
        "requests_per_second": len(completed) / seconds,
        "goodput_requests_per_second": len(good) / seconds,
        "share_within_goals": len(good) / len(completed) if completed else None,
        "ttft_seconds_p50": percentile(ttfts, 0.5),
        "ttft_seconds_p99": percentile(ttfts, 0.99),
        "inter_token_seconds_p50": percentile(inter_token, 0.5),
        "inter_token_seconds_p99": percentile(inter_token, 0.99),
        "delta_gap_seconds_p99": percentile([gap / time_scale for gap, _ in gaps], 0.99),
        "num_ttfts": len(ttfts),
        "num_completed": len(completed),
        "num_rounds": len(rounds),
        "draft_tokens_per_round": drafted / len(rounds) if rounds else None,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / len(rounds) if rounds else None,
        "cached_prompt_share": (
            sum(record.num_cached_tokens for record in completed) / prompt_tokens if prompt_tokens else None
        ),
        "num_fallback_rounds": sum(record.num_fallback_rounds for record in completed),
        **_pass_figures("target", window.target_passes, began, ended, time_scale),
        **_pass_figures("draft", window.draft_passes, began, ended, time_scale),
    }
    for name, spent in window.cpu_seconds.items():
        figures[f"{name}_cpu_share"] = spent / (ended - began)
    orchestrator = window.cpu_seconds.get("orchestrator", 0.0)
    figures["orchestrator_cpu_seconds_per_round"] = orchestrator / len(rounds) if rounds else None
    return figures


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value that `share` of the values are not above, linear between two of them; None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    lower = math.floor(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (place - lower) * (ordered[upper] - ordered[lower])


def medians(repeats: Sequence[Figures]) -> Figures:
    """Of each figure, over the repeats in which it applies."""
    names = dict.fromkeys(name for figures in repeats for name in figures)
    return {name: median([figures.get(name) for figures in repeats]) for name in names}


def median(values: Iterable[float | None]) -> float | None:
    """Median of those that apply; None if none does."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _keeps(record: RequestRecord, goals: Goals, time_scale: float) -> bool:
    ttft, tpot = record.ttft_seconds, record.tpot_seconds
    if ttft is None or ttft / time_scale > goals.ttft_seconds:
        return False
    return tpot is None or tpot / time_scale <= goals.inter_token_seconds


def _pass_figures(name: str, passes: Sequence[Pass], began: float, ended: float, time_scale: float) -> Figures:
    """Of the passes that overlap the window; None all over if there are none."""
    busy = busy_seconds(passes, began, ended) / (ended - began) if passes else None
    late = [entry.computing_seconds > entry.planned_seconds for entry in passes if entry.planned_seconds]
    waited = [entry for entry in passes if entry.planned_seconds >= entry.computing_seconds > 0]
    return {
        f"{name}_busy_share": busy,
        f"{name}_num_passes": len(passes),
        f"{name}_pass_seconds_mean": _mean(entry.seconds / time_scale for entry in passes),
        f"{name}_sequences_mean": _mean(entry.num_sequences for entry in passes),
        f"{name}_sequences_max": max((entry.num_sequences for entry in passes), default=None),
        f"{name}_rows_mean": _mean(entry.num_rows for entry in passes),
        f"{name}_rows_max": max((entry.num_rows for entry in passes), default=None),
        f"{name}_late_share": sum(late) / len(late) if late else None,
        f"{name}_clock_error_seconds_p50": percentile((entry.seconds - entry.planned_seconds for entry in waited), 0.5),
        f"{name}_clock_error_seconds_p99": percentile(
            (entry.seconds - entry.planned_seconds for entry in waited), 0.99
        ),
    }


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.fmean(listed) if listed else None

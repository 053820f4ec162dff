"""One place of the grid of `benchmarks.latency`: what was measured there, and what the planner's formula says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.deployment.pass_log import Pass
from specdec.planning.acceptance import Acceptance
from specdec.planning.costs import Costs
from specdec.planning.one_client import best_split, split_rate
from specdec.planning.pipeline import Pipeline, PipelineMode
from specdec.v1 import draft_pb2, generation_pb2

REQUIRED_TARGET_SECONDS, REQUIRED_DRAFT_SECONDS, REQUIRED_ACCEPTANCE = 0.03, 0.003, 0.8
_REQUIRED: dict[tuple[PipelineMode, float], float] = {
    ("off", 0.0005): 0.95 * 81,
    ("off", 0.02): 0.95 * 59,
    ("off", 0.08): 0.95 * 33,
    ("ahead", 0.0005): 120,
    ("ahead", 0.02): 80,
    ("ahead", 0.08): 39,
    ("candidates", 0.0005): 125,
    ("candidates", 0.02): 95,
    ("candidates", 0.08): 55,
}
"""Tokens a second by pipeline and round trip, for the devices and the acceptance above, one client."""


@dataclass(frozen=True)
class Place:
    """Where a cell is measured."""

    pipeline: PipelineMode
    rtt_seconds: float
    """Asked of the relay."""
    acceptance: float | None
    """Asked of the dial; None: the drafter is what it is."""
    num_draft_tokens: int | None
    """K; None: auto."""

    def required(self, target_seconds: float, draft_seconds: float) -> float | None:
        """Tokens a second that must be reached on simulated devices; None: nothing is required here."""
        given = (target_seconds, draft_seconds, self.acceptance)
        if given != (REQUIRED_TARGET_SECONDS, REQUIRED_DRAFT_SECONDS, REQUIRED_ACCEPTANCE):
            return None
        return _REQUIRED.get((self.pipeline, self.rtt_seconds))


@dataclass(frozen=True)
class Generation:
    """One generation as its client saw it, with the forward passes of both services meanwhile; decoding only."""

    decode_seconds: float
    """From the first tokens to the last."""
    num_tokens: int
    """That came within this time."""
    rounds: tuple[generation_pb2.RoundReport, ...]
    """Without the prefill."""
    target_passes: tuple[Pass, ...]
    draft_passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Figures:
    """Of all generations of a cell. Times are of the device meant: what was slowed down is counted back."""

    measured_tokens_per_second: float
    num_rounds: int
    mean_draft_tokens: float
    mean_acceptance_length: float
    """Bonus or recovered token counted."""
    acceptance_rate: float | None
    hit_rate: float | None
    """Of the rounds that were drafted ahead for, those whose outcome was among the ones drafted for; None: none was."""
    round_seconds: float
    draft_queue_seconds: float
    draft_compute_seconds: float
    target_queue_seconds: float
    target_compute_seconds: float
    network_seconds: float
    """Waits without what the services say of them."""
    waiting_seconds: float
    """The rest of the round: the orchestrator waiting for its turn."""
    draft_rows_per_round: float
    """Rows that the drafter ran: the windows, and what it drafted ahead."""
    wasted_drafts_per_round: float
    """Those of them that became no accepted token."""
    target_rows_per_round: float

    @classmethod
    def of(cls, generations: Sequence[Generation], time_scale: float) -> Figures:
        """Sums and means.

        Args:
            generations: at least one, with at least one round.
            time_scale: how many times slower than life they were.
        """
        rounds = [report for generation in generations for report in generation.rounds]
        count = len(rounds)
        drafted = sum(report.num_draft_tokens for report in rounds)
        accepted = sum(report.num_accepted_tokens for report in rounds)
        outcomes = [report.draft_ahead for report in rounds if report.draft_ahead]
        draft_rows = sum(entry.num_rows for each in generations for entry in each.draft_passes)
        target_rows = sum(entry.num_rows for each in generations for entry in each.target_passes)

        def mean(microseconds: Iterable[float]) -> float:
            return sum(microseconds) / 1e6 / count / time_scale

        seconds = sum(generation.decode_seconds for generation in generations) / time_scale
        return cls(
            measured_tokens_per_second=sum(generation.num_tokens for generation in generations) / seconds,
            num_rounds=count,
            mean_draft_tokens=drafted / count,
            mean_acceptance_length=1 + accepted / count,
            acceptance_rate=accepted / drafted if drafted else None,
            hit_rate=outcomes.count(draft_pb2.AHEAD_OUTCOME_HIT) / len(outcomes) if outcomes else None,
            round_seconds=seconds / count,
            draft_queue_seconds=mean(report.draft.queue_microseconds for report in rounds),
            draft_compute_seconds=mean(report.draft.compute_microseconds for report in rounds),
            target_queue_seconds=mean(report.verify.queue_microseconds for report in rounds),
            target_compute_seconds=mean(report.verify.compute_microseconds for report in rounds),
            network_seconds=mean(
                draft_network_microseconds(each) + target_network_microseconds(each) for each in rounds
            ),
            waiting_seconds=mean(map(waiting_microseconds, rounds)),
            draft_rows_per_round=draft_rows / count,
            wasted_drafts_per_round=max(0, draft_rows - accepted) / count,
            target_rows_per_round=target_rows / count,
        )


def cell(
    place: Place,
    figures: Figures,
    costs: Costs,
    acceptance: Acceptance,
    *,
    required: float | None,
    num_draft_tokens: int | None = None,
) -> dict[str, Any]:
    """As JSON values, with the planner's rate for this place.

    Args:
        place: where it was measured.
        figures: what was measured.
        costs: what the formula is given.
        acceptance: the same.
        required: tokens a second that must be reached; None: none.
        num_draft_tokens: K of the formula; None: as at this place, or the best one where it is chosen there.
    """
    pipeline = Pipeline(place.pipeline, figures.hit_rate or 0.0)
    count = place.num_draft_tokens if num_draft_tokens is None else num_draft_tokens
    if count is None:
        predicted = best_split(costs, acceptance, pipeline, max_draft_tokens=16)
    else:
        predicted = split_rate(costs, acceptance, count, pipeline)
    measured = figures.measured_tokens_per_second
    return {
        "pipeline": place.pipeline,
        "rtt_seconds": place.rtt_seconds,
        "acceptance": place.acceptance,
        "num_draft_tokens": "auto" if place.num_draft_tokens is None else place.num_draft_tokens,
        "predicted_tokens_per_second": predicted.tokens_per_second,
        "predicted_round_seconds": predicted.round_seconds,
        "measured_over_predicted": measured / predicted.tokens_per_second,
        "required_tokens_per_second": required,
        "is_met": None if required is None else measured >= required,
        **asdict(figures),
    }


def draft_network_microseconds(report: generation_pb2.RoundReport) -> int:
    """As `orchestrator.rounds.Round` has it: what overlapped the work before a wait was not lost."""
    return max(0, report.draft_wait_microseconds - report.draft.queue_microseconds - report.draft.compute_microseconds)


def target_network_microseconds(report: generation_pb2.RoundReport) -> int:
    """The same."""
    return max(
        0, report.verify_wait_microseconds - report.verify.queue_microseconds - report.verify.compute_microseconds
    )


def waiting_microseconds(report: generation_pb2.RoundReport) -> int:
    """What is left of a round: the orchestrator's own, or its waiting for a turn."""
    return max(0, report.wall_microseconds - report.draft_wait_microseconds - report.verify_wait_microseconds)

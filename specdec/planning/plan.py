"""The plan: everything that is computed, from everything that is given."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specdec.planning.acceptance import Acceptance
from specdec.planning.costs import Costs
from specdec.planning.latency_goal import LatencyGoal
from specdec.planning.offer import Demand, Offer, Offers, Prices
from specdec.planning.one_client import OneClient, best_colocated, best_split
from specdec.planning.pass_costs import PassCosts
from specdec.planning.pipeline import PIPELINE_MODES, Pipeline, PipelineMode
from specdec.planning.request_mix import RequestMix
from specdec.planning.verdict import Verdict, judge

MAX_DRAFT_TOKENS = 16
MAX_SEQUENCES = 256


@dataclass(frozen=True)
class ModePlan:
    """The split system in one pipeline mode."""

    mode: PipelineMode
    one_client: OneClient
    offer: Offer | None
    """Under load; None: the goal cannot be kept."""


@dataclass(frozen=True)
class Plan:
    """What was asked, and what to expect."""

    costs: Costs
    acceptance: Acceptance
    hit_probability: float
    rounds_ahead: int
    demand: Demand
    prices: Prices | None
    target_only_one_client: OneClient
    """Plain decoding beside the target, without network."""
    colocated_one_client: OneClient
    modes: tuple[ModePlan, ...]
    """Of the split system."""
    target_only: Offer | None
    colocated: Offer | None
    split: ModePlan
    """The mode that the verdict is about: the one asked for, or the best."""
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """As JSON values; units are in the names."""
        return {
            "given": {
                "draft_passes": _points(self.costs.draft),
                "colocated_draft_passes": _points(self.costs.draft_beside_target),
                "verify_passes": _points(self.costs.verify),
                "rtt_seconds": self.costs.rtt_seconds,
                "draft_rtt_seconds": self.costs.draft_rtt_seconds,
                "overhead_seconds": self.costs.overhead_seconds,
                "acceptance_by_position": list(self.acceptance.rates),
                "hit_probability": self.hit_probability,
                "rounds_ahead": self.rounds_ahead,
                "request_mix": [asdict(kind) for kind in self.demand.mix.kinds],
                "latency_goal": asdict(self.demand.goal),
                "max_sequences": self.demand.max_sequences,
                "kv_tokens": self.demand.kv_tokens,
                "num_targets": self.demand.num_targets,
                "prices": None if self.prices is None else asdict(self.prices),
            },
            "one_client": {
                "target_only": asdict(self.target_only_one_client),
                "colocated": asdict(self.colocated_one_client),
                "split": {mode.mode: asdict(mode.one_client) for mode in self.modes},
            },
            "one_target": {
                "target_only": _offer(self.target_only),
                "colocated": _offer(self.colocated),
                "split": {mode.mode: _offer(mode.offer) for mode in self.modes},
            },
            "pipeline": self.split.mode,
            "buy": self.verdict.way,
            "reason": self.verdict.reason,
        }


def plan(
    costs: Costs,
    acceptance: Acceptance,
    *,
    pipeline: PipelineMode | None = None,
    hit_probability: float | None = None,
    rounds_ahead: int = 1,
    prices: Prices | None = None,
    mix: RequestMix | None = None,
    goal: LatencyGoal | None = None,
    max_draft_tokens: int = MAX_DRAFT_TOKENS,
    max_sequences: int = MAX_SEQUENCES,
    kv_tokens: int | None = None,
    num_targets: int = 1,
) -> Plan:
    """Predict one client's rate, a target's capacity and the price of tokens, and choose.

    Args:
        costs: times of passes and of the network.
        acceptance: by position.
        pipeline: the mode of the split system that is compared with the other ways; None: its best.
        hit_probability: how often the outcome of a round was drafted for; None: the acceptance of a first token, as if
            the token after a round were guessed as well as any other.
        rounds_ahead: see `Pipeline`.
        prices: None: no dollars, and the verdict goes by tokens a second.
        mix: None: 512 tokens of prompt and 256 of output.
        goal: None: 50 ms a token.
        max_draft_tokens: largest K that is considered, at least 1.
        max_sequences: most clients of one target, at least 1.
        kv_tokens: tokens that the target's key-value memory holds; None: enough.
        num_targets: how many targets share the draft devices, at least 1.

    Raises:
        ValueError: a number cannot be.
    """
    if min(max_draft_tokens, max_sequences, num_targets) < 1:
        raise ValueError("there is at least one draft token, one sequence and one target to plan for")
    hits = acceptance.rate(1) if hit_probability is None else hit_probability
    demand = Demand(mix or RequestMix(), goal or LatencyGoal(tpot_seconds=0.05), max_sequences, kv_tokens, num_targets)
    offers = Offers(costs, acceptance, demand, prices, max_draft_tokens)
    modes = []
    for mode in PIPELINE_MODES:
        hidden = Pipeline(mode, hits, rounds_ahead)
        modes.append(ModePlan(mode, best_split(costs, acceptance, hidden, max_draft_tokens), offers.split(hidden)))
    split = _chosen(modes, pipeline)
    target_only, colocated = offers.target_only(), offers.colocated()
    return Plan(
        costs=costs,
        acceptance=acceptance,
        hit_probability=hits,
        rounds_ahead=rounds_ahead,
        demand=demand,
        prices=prices,
        target_only_one_client=best_colocated(costs, acceptance, 0),
        colocated_one_client=best_colocated(costs, acceptance, max_draft_tokens),
        modes=tuple(modes),
        target_only=target_only,
        colocated=colocated,
        split=split,
        verdict=judge([target_only, colocated, split.offer]),
    )


def _chosen(modes: list[ModePlan], pipeline: PipelineMode | None) -> ModePlan:
    """The mode asked for; else the one with the cheapest tokens, then with the quickest single client."""
    asked = [mode for mode in modes if pipeline in (None, mode.mode)]

    def merit(mode: ModePlan) -> tuple[float, float]:
        if mode.offer is None:
            return (0.0, mode.one_client.tokens_per_second)
        dollars = mode.offer.dollars_per_million_tokens
        return (mode.offer.tokens_per_second if dollars is None else 1 / dollars, mode.one_client.tokens_per_second)

    return max(asked, key=merit)


def _points(costs: PassCosts) -> list[dict[str, float | None]]:
    return [point._asdict() for point in costs.points]


def _offer(offer: Offer | None) -> dict[str, Any] | None:
    return None if offer is None else asdict(offer)

"""The rate of one client that has the system for itself."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.planning.acceptance import Acceptance
from specdec.planning.costs import Costs
from specdec.planning.pipeline import Pipeline, RoundParts


@dataclass(frozen=True)
class OneClient:
    """A choice of K and what it gives."""

    num_draft_tokens: int
    """K."""
    tokens_per_second: float
    """While decoding; the prefill is left out."""
    round_seconds: float


def split_rate(costs: Costs, acceptance: Acceptance, num_draft_tokens: int, pipeline: Pipeline) -> OneClient:
    """`E(K) / round`, with the round of the pipeline's mode. K = 0 is plain decoding by each: `1 / (v(1) + RTT)`."""
    verify = costs.verify.seconds(num_draft_tokens + 1)
    network = costs.rtt_seconds + costs.overhead_seconds
    if num_draft_tokens == 0:
        return OneClient(0, 1 / (verify + network), verify + network)
    drafting = num_draft_tokens * costs.draft.seconds(1)
    seconds = pipeline.round_seconds(RoundParts(drafting, verify, network, costs.draft_rtt_seconds))
    return OneClient(num_draft_tokens, acceptance.expected_tokens(num_draft_tokens) / seconds, seconds)


def colocated_rate(costs: Costs, acceptance: Acceptance, num_draft_tokens: int) -> OneClient:
    """Draft and target take turns on the target's device, without a network: `E(K) / (K * t_draft + v(K + 1))`."""
    drafting = num_draft_tokens * costs.draft_beside_target.seconds(1)
    seconds = drafting + costs.verify.seconds(num_draft_tokens + 1) + costs.overhead_seconds
    return OneClient(num_draft_tokens, acceptance.expected_tokens(num_draft_tokens) / seconds, seconds)


def best_split(costs: Costs, acceptance: Acceptance, pipeline: Pipeline, max_draft_tokens: int) -> OneClient:
    """The K with most tokens a second, the smallest one of several; 0 included."""
    return max(
        (split_rate(costs, acceptance, k, pipeline) for k in range(max_draft_tokens + 1)),
        key=lambda rate: rate.tokens_per_second,
    )


def best_colocated(costs: Costs, acceptance: Acceptance, max_draft_tokens: int) -> OneClient:
    """As `best_split`, on one device."""
    return max(
        (colocated_rate(costs, acceptance, k) for k in range(max_draft_tokens + 1)),
        key=lambda rate: rate.tokens_per_second,
    )

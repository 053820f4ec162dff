import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.planning.acceptance import Acceptance
from specdec.planning.costs import Costs
from specdec.planning.one_client import best_colocated, best_split, colocated_rate, split_rate
from specdec.planning.pass_costs import PassCosts, PassPoint
from specdec.planning.pipeline import Pipeline
from tests.specdec.planning.numbers import acceptances, all_costs, pipelines, probabilities

ACCEPTANCE = Acceptance((0.8,))


def simulated(rtt_ms: float) -> Costs:
    """30 ms a pass of the target and 3 ms a draft token."""
    return Costs(draft=PassCosts.constant(0.003), verify=PassCosts.constant(0.03), rtt_seconds=rtt_ms / 1e3)


@pytest.mark.parametrize(("rtt_ms", "k", "rate"), [(0.5, 6, 81.5), (20, 7, 58.6), (80, 10, 32.6)])
def test_the_plain_loop_by_hand(rtt_ms: float, k: int, rate: float) -> None:
    best = best_split(simulated(rtt_ms), ACCEPTANCE, Pipeline("off"), 16)
    assert best.num_draft_tokens == k
    # E(6) = (1 - 0.8^7) / 0.2 = 3.9514; 3.9514 / (0.018 + 0.0005 + 0.03) = 81.5
    assert best.tokens_per_second == pytest.approx(rate, abs=0.05)


def test_one_box_by_hand() -> None:
    best = best_colocated(simulated(80), ACCEPTANCE, 16)
    assert best.num_draft_tokens == 6
    assert best.tokens_per_second == pytest.approx(3.951424 / 0.048)


def test_rows_count() -> None:
    costs = Costs(draft=PassCosts.constant(0.001), verify=PassCosts([PassPoint(1, 0.01), PassPoint(5, 0.05)]))
    assert split_rate(costs, Acceptance((0.5,)), 2, Pipeline("off")).round_seconds == pytest.approx(0.002 + 0.03)
    # Each row costs as much as a pass, so drafts never pay.
    assert best_split(costs, Acceptance((0.9,)), Pipeline("off"), 8).num_draft_tokens == 0


def test_nothing_is_drafted_that_is_never_accepted() -> None:
    assert best_split(simulated(20), Acceptance((0.0,)), Pipeline("candidates"), 16).num_draft_tokens == 0


@given(all_costs(), acceptances, pipelines)
def test_no_drafts_are_plain_decoding_in_every_mode(costs: Costs, acceptance: Acceptance, pipeline: Pipeline) -> None:
    plain = 1 / (costs.verify.seconds(1) + costs.rtt_seconds + costs.overhead_seconds)
    assert split_rate(costs, acceptance, 0, pipeline).tokens_per_second == pytest.approx(plain)


@given(all_costs(), acceptances, pipelines)
def test_the_best_is_no_worse_than_any(costs: Costs, acceptance: Acceptance, pipeline: Pipeline) -> None:
    best = best_split(costs, acceptance, pipeline, 8)
    rates = [split_rate(costs, acceptance, k, pipeline).tokens_per_second for k in range(9)]
    assert best.tokens_per_second == max(rates)
    assert best.num_draft_tokens == rates.index(max(rates))


@given(all_costs(), acceptances, pipelines, probabilities)
def test_more_acceptance_never_lowers_the_rate(
    costs: Costs, acceptance: Acceptance, pipeline: Pipeline, more: float
) -> None:
    better = Acceptance(tuple(max(rate, more) for rate in acceptance.rates))
    split, better_split = (best_split(costs, rates, pipeline, 8) for rates in (acceptance, better))
    assert better_split.tokens_per_second >= split.tokens_per_second * (1 - 1e-12)
    together, better_together = (best_colocated(costs, rates, 8) for rates in (acceptance, better))
    assert better_together.tokens_per_second >= together.tokens_per_second * (1 - 1e-12)


@given(all_costs(), acceptances, pipelines, st.floats(0, 0.3))
def test_more_network_never_raises_the_rate(
    costs: Costs, acceptance: Acceptance, pipeline: Pipeline, more: float
) -> None:
    farther = Costs(
        draft=costs.draft,
        verify=costs.verify,
        rtt_seconds=costs.rtt_seconds + more,
        draft_rtt_seconds=costs.draft_rtt_seconds,
        overhead_seconds=costs.overhead_seconds,
    )
    before = best_split(costs, acceptance, pipeline, 8).tokens_per_second
    assert best_split(farther, acceptance, pipeline, 8).tokens_per_second <= before * (1 + 1e-12)


@given(all_costs(), acceptances, st.integers(0, 8))
def test_in_turn_and_without_network_one_box_is_as_quick(costs: Costs, acceptance: Acceptance, k: int) -> None:
    near = Costs(draft=costs.draft, verify=costs.verify, overhead_seconds=costs.overhead_seconds)
    split = split_rate(near, acceptance, k, Pipeline("off")).tokens_per_second
    assert split == pytest.approx(colocated_rate(near, acceptance, k).tokens_per_second)

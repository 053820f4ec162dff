import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.planning.acceptance import Acceptance
from specdec.planning.costs import Costs
from specdec.planning.latency_goal import LatencyGoal
from specdec.planning.offer import Offer, Prices
from specdec.planning.pass_costs import PassCosts, PassPoint
from specdec.planning.plan import plan
from specdec.planning.request_mix import RequestKind, RequestMix
from specdec.planning.verdict import judge
from tests.specdec.planning.numbers import acceptances, all_costs, probabilities

NO_PROMPTS = RequestMix((RequestKind(1, 1_000_000),))
"""Prefills that take next to nothing, for figures by hand."""
COSTS = Costs(
    draft=PassCosts.constant(0.005),
    verify=PassCosts([PassPoint(1, 0.0201), PassPoint(101, 0.0301)]),
    rtt_seconds=0.002,
)
"""A pass of n rows takes 20 + 0.1 n ms."""


def test_capacity_and_price_by_hand() -> None:
    made = plan(
        COSTS,
        Acceptance((1.0,)),
        pipeline="off",
        prices=Prices(3.6, 0.36),
        mix=NO_PROMPTS,
        goal=LatencyGoal(tpot_seconds=0.04005),
        max_draft_tokens=1,
        max_sequences=10_000,
    )
    alone, together, split = made.target_only, made.colocated, made.split.offer
    assert alone is not None
    assert together is not None
    assert split is not None
    # 20 + 0.1 n <= 40.05
    assert alone.num_clients == 200
    assert alone.tokens_per_second == pytest.approx(200 / 0.04, rel=1e-3)
    assert alone.dollars_per_million_tokens == pytest.approx(3.6 / 3600 / 5000 * 1e6, rel=1e-3)
    # Two tokens a round of 80.1 ms at most: 5 + 20 + 0.2 n <= 80.1
    assert together.num_clients == 275
    # Away for 7 ms, a client misses one pass, so there are two groups of n / 2: 2 * (20 + 0.1 n) <= 80.1
    assert split.num_clients == 200
    assert split.drafts_per_target == 1
    assert split.busy_share == pytest.approx(1)
    assert split.dollars_per_hour == pytest.approx(3.96)
    assert split.tokens_per_second == pytest.approx(200 * 2 / 0.08, rel=1e-3)


def test_a_saturated_target_serves_more_clients_by_the_factor_of_the_design() -> None:
    """1 + K * t_draft / t_verify, of a sequence; here both grow with the batch, so that it is saturated."""
    costs = Costs(
        draft=PassCosts.constant(0.004),
        verify=PassCosts([PassPoint(1, 0.005), PassPoint(1001, 5.005)]),
        colocated_draft=PassCosts([PassPoint(1, 0.004), PassPoint(1001, 4.004)]),
    )
    made = plan(
        costs, Acceptance((1.0,)), pipeline="off", mix=NO_PROMPTS, goal=LatencyGoal(tpot_seconds=2.0),
        max_draft_tokens=1, max_sequences=10_000,
    )  # fmt: skip
    assert made.colocated is not None
    assert made.split.offer is not None
    ratio = made.split.offer.tokens_per_second / made.colocated.tokens_per_second
    assert ratio == pytest.approx(1 + 0.004 / (2 * 0.005), rel=0.02)


def test_prefills_take_the_target_time() -> None:
    mix = RequestMix((RequestKind(500, 100),))
    made = plan(COSTS, Acceptance((0.5,)), mix=mix, goal=LatencyGoal(tpot_seconds=0.04), max_sequences=10_000)
    assert made.target_only is not None
    # 500 rows of 0.1 ms for 100 tokens: 0.5 ms a token. 20 + 0.1 n + 0.5 n <= 40
    assert made.target_only.num_clients == 33


def test_a_time_per_request_leaves_out_the_first_token() -> None:
    mix = RequestMix((RequestKind(101, 101), RequestKind(1, 11, 3.0)))
    goal = LatencyGoal(request_seconds=3.0301)
    # Of the longer kind 3.0301 - 0.0301 s for 100 tokens.
    assert goal.longest_tpot(mix, COSTS.verify, 0.0) == pytest.approx(0.03)
    assert goal.longest_tpot(mix, COSTS.verify, 0.1) == pytest.approx(0.029)


def test_memory_limits_the_clients() -> None:
    mix = RequestMix((RequestKind(100, 200), RequestKind(50, 100, 2.0)))
    assert mix.mean_context_tokens() == pytest.approx((200 * 200 + 2 * 100 * 100) / 400)
    made = plan(COSTS, Acceptance((0.5,)), mix=mix, goal=LatencyGoal(tpot_seconds=9.0), kv_tokens=1600)
    assert made.target_only is not None
    assert made.target_only.num_clients == 10


def test_more_drafts_where_a_drafter_gets_slow_with_many_clients() -> None:
    costs = replace(COSTS, draft=PassCosts([PassPoint(1, 0.001), PassPoint(101, 0.101)]))
    made = plan(
        costs, Acceptance((0.9,)), pipeline="off", prices=Prices(10.0, 0.01), mix=NO_PROMPTS,
        goal=LatencyGoal(tpot_seconds=0.04), max_sequences=200,
    )  # fmt: skip
    assert made.split.offer is not None
    assert made.split.offer.drafts_per_target > 1


def test_targets_share_drafts() -> None:
    def split(num_targets: int) -> Offer:
        made = plan(
            COSTS, Acceptance((0.9,)), pipeline="off", prices=Prices(10.0, 1.0), mix=NO_PROMPTS, num_targets=num_targets
        )
        assert made.split.offer is not None
        return made.split.offer

    # Steps of this drafter take as long for many as for one.
    assert split(4).drafts_per_target == 0.25
    assert split(4).dollars_per_hour == pytest.approx(10.25)
    assert split(4).num_clients == split(1).num_clients


def test_targets_that_share_a_slow_drafter_do_not_get_it_for_nothing() -> None:
    costs = replace(COSTS, draft=PassCosts([PassPoint(1, 0.001), PassPoint(101, 0.101)]))

    def offer_of(num_targets: int) -> Offer:
        made = plan(
            costs, Acceptance((0.9,)), pipeline="off", prices=Prices(10.0, 0.1), mix=NO_PROMPTS,
            goal=LatencyGoal(tpot_seconds=0.04), max_sequences=100, num_targets=num_targets,
        )  # fmt: skip
        assert made.split.offer is not None
        return made.split.offer

    assert offer_of(4).drafts_per_target == pytest.approx(offer_of(1).drafts_per_target, rel=0.3)


def test_the_verdict_is_the_cheapest_and_says_why() -> None:
    expensive_drafting = replace(COSTS, colocated_draft=PassCosts.constant(0.03))
    made = plan(
        expensive_drafting, Acceptance((0.8,)), prices=Prices(5.0, 0.2), mix=NO_PROMPTS,
        goal=LatencyGoal(tpot_seconds=0.03), max_sequences=10_000,
    )  # fmt: skip
    assert made.verdict.way == "split"
    assert "draft device" in made.verdict.reason
    assert made.split.offer is not None
    assert f"${made.split.offer.dollars_per_million_tokens:.3g} per million tokens" in made.verdict.reason
    costly = plan(
        expensive_drafting, Acceptance((0.8,)), prices=Prices(5.0, 50.0), mix=NO_PROMPTS,
        goal=LatencyGoal(tpot_seconds=0.03), max_sequences=10_000,
    )  # fmt: skip
    assert costly.verdict.way != "split"


def test_useless_drafts_are_not_bought() -> None:
    made = plan(COSTS, Acceptance((0.0,)), prices=Prices(5.0, 0.2), mix=NO_PROMPTS)
    assert made.verdict.way == "target-only"
    assert "does not pay" in made.verdict.reason


def test_a_goal_that_nobody_keeps() -> None:
    made = plan(COSTS, Acceptance((0.5,)), prices=Prices(5.0, 0.2), goal=LatencyGoal(tpot_seconds=0.001))
    assert made.verdict.way is None
    assert made.split.offer is None
    assert json.loads(json.dumps(made.to_json()))["one_target"]["target_only"] is None


def test_only_drafts_keep_a_goal_below_a_pass() -> None:
    made = plan(COSTS, Acceptance((0.9,)), mix=NO_PROMPTS, goal=LatencyGoal(tpot_seconds=0.015))
    assert made.target_only is None
    assert made.verdict.way in ("co-located", "split")


def offer(way: str, dollars: float) -> Offer:
    return Offer(way, 1, 1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, dollars)  # type: ignore[arg-type]


def test_of_nearly_equal_ways_the_simplest_is_bought() -> None:
    nearly = [offer("target-only", 1.3), offer("co-located", 1.01), offer("split", 1.0)]
    assert judge(nearly).way == "co-located"
    assert judge([*nearly[:2], offer("split", 0.9)]).way == "split"


@settings(max_examples=25)
@given(all_costs(), acceptances, probabilities, st.floats(0.001, 0.3))
def test_more_acceptance_is_never_worse(costs: Costs, acceptance: Acceptance, more: float, goal: float) -> None:
    better = Acceptance(tuple(max(rate, more) for rate in acceptance.rates))

    def clients(rates: Acceptance) -> list[int]:
        made = plan(
            costs, rates, goal=LatencyGoal(tpot_seconds=goal), max_draft_tokens=3, max_sequences=24, mix=NO_PROMPTS
        )
        offers = [made.target_only, made.colocated, *(mode.offer for mode in made.modes)]
        return [found.num_clients if found else 0 for found in offers]

    assert all(after >= before for before, after in zip(clients(acceptance), clients(better), strict=True))


@settings(max_examples=25)
@given(all_costs(), acceptances, st.floats(0, 0.2), st.floats(0.001, 0.3))
def test_a_longer_way_is_never_better(costs: Costs, acceptance: Acceptance, more: float, goal: float) -> None:
    def clients(given: Costs) -> list[int]:
        made = plan(
            given, acceptance, goal=LatencyGoal(tpot_seconds=goal), max_draft_tokens=3, max_sequences=24, mix=NO_PROMPTS
        )
        return [mode.offer.num_clients if mode.offer else 0 for mode in made.modes]

    farther = replace(costs, rtt_seconds=costs.rtt_seconds + more)
    assert all(after <= before for before, after in zip(clients(costs), clients(farther), strict=True))


def test_the_json_says_all() -> None:
    made = plan(COSTS, Acceptance((0.8, 0.7)), prices=Prices(3.0, 1.0))
    said = json.loads(json.dumps(made.to_json()))
    assert said["given"]["acceptance_by_position"] == [0.8, 0.7]
    assert said["given"]["hit_probability"] == 0.8
    assert set(said["one_client"]["split"]) == {"off", "ahead", "candidates"}
    assert said["one_client"]["split"]["off"]["tokens_per_second"] == made.modes[0].one_client.tokens_per_second
    assert said["buy"] == made.verdict.way
    assert said["one_target"]["split"][said["pipeline"]]["dollars_per_million_tokens"] > 0


def test_what_cannot_be() -> None:
    for wrong in ({"max_draft_tokens": 0}, {"num_targets": 0}, {"max_sequences": 0}, {"hit_probability": 2.0}):
        with pytest.raises(ValueError, match=r"at least one|hit"):
            plan(COSTS, Acceptance((0.8,)), **wrong)
    with pytest.raises(ValueError, match="goal"):
        LatencyGoal()
    with pytest.raises(ValueError, match="prices"):
        Prices(0.0, 1.0)
    with pytest.raises(ValueError, match="request"):
        RequestKind(0, 1)


def test_planning_needs_no_library() -> None:
    program = """
import sys
import specdec.planning.plan
heavy = {"torch", "transformers", "numpy", "grpc", "pydantic", "matplotlib", "rich"} & set(sys.modules)
assert not heavy, heavy
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr

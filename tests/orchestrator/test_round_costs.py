"""Prediction of the duration of a round."""

import pytest

from orchestrator.round_costs import RoundCosts
from specdec.v1 import draft_pb2, model_pb2
from tests.orchestrator.made_rounds import made_round


def model_info(*costs: tuple[int, int]) -> model_pb2.ModelInfo:
    return model_pb2.ModelInfo(
        forward_costs=[model_pb2.ForwardCost(rows=rows, microseconds=microseconds) for rows, microseconds in costs]
    )


def seconds(costs: RoundCosts, num_draft_tokens: int, *, by_lookup: bool) -> float:
    """A whole round with a chain."""
    return costs.draft_seconds(num_draft_tokens, by_lookup=by_lookup) + costs.other_seconds(num_draft_tokens)


def test_a_round_is_drafting_network_queue_and_forward_pass() -> None:
    costs = RoundCosts()
    assert not costs.are_known(by_lookup=True)
    costs.announce(model_info((1, 100_000), (5, 140_000), (9, 180_000)))
    assert seconds(costs, 0, by_lookup=False) == pytest.approx(0.1)
    assert seconds(costs, 4, by_lookup=False) == pytest.approx(0.14)
    costs.observe(made_round(4, 2, verify_seconds=0.14, draft_seconds=0.04, network_seconds=0.02, queue_seconds=0.07))
    assert seconds(costs, 4, by_lookup=False) == pytest.approx(4 * 0.01 + 0.02 + 1.5 * 0.14)
    # Half a pass is waited for, whatever the pass takes.
    assert seconds(costs, 0, by_lookup=False) == pytest.approx(0.02 + 1.5 * 0.1)


def test_all_that_share_the_pass_are_taken_to_do_the_same() -> None:
    costs = RoundCosts()
    costs.announce(model_info((1, 10_000), (101, 110_000)))
    costs.observe(made_round(0, 0, verify_seconds=0.017, batch_sequences=8))
    assert seconds(costs, 0, by_lookup=False) == pytest.approx(0.017)
    assert seconds(costs, 4, by_lookup=False) == pytest.approx(0.049)


def test_a_target_that_measured_nothing_is_learnt_from_its_rounds() -> None:
    costs = RoundCosts()
    costs.announce(model_info())
    with pytest.raises(RuntimeError):
        seconds(costs, 0, by_lookup=False)
    for _ in range(300):
        costs.observe(made_round(0, 0, verify_seconds=0.1))
        costs.observe(made_round(7, 0, verify_seconds=0.2))
    assert seconds(costs, 0, by_lookup=False) == pytest.approx(0.1, rel=0.25)
    assert seconds(costs, 7, by_lookup=False) == pytest.approx(0.2, rel=0.25)


def test_costs_that_make_no_sense_are_none() -> None:
    costs = RoundCosts()
    costs.announce(model_info((3, 10), (1, 20)))
    assert not costs.are_known(by_lookup=True)


def test_announcing_again_keeps_what_was_learnt() -> None:
    costs = RoundCosts()
    costs.announce(model_info((1, 100_000)))
    for _ in range(100):
        costs.observe(made_round(0, 0, verify_seconds=0.2))
    costs.announce(model_info((1, 100_000)))
    assert seconds(costs, 0, by_lookup=False) == pytest.approx(0.2, rel=0.01)
    costs.announce(model_info((1, 50_000)))
    assert seconds(costs, 0, by_lookup=False) == pytest.approx(0.05)


def test_what_lookup_finds_costs_no_time_for_each_token() -> None:
    costs = RoundCosts()
    costs.announce(model_info((1, 100_000), (9, 100_000)))
    assert costs.are_known(by_lookup=True)
    assert not costs.are_known(by_lookup=False), "nobody knows what a draft takes"
    costs.observe(made_round(4, 0, draft_seconds=0.002, source=draft_pb2.DRAFT_SOURCE_SUFFIX))
    assert not costs.are_known(by_lookup=False)
    costs.observe(made_round(4, 0, draft_seconds=0.08))
    assert costs.are_known(by_lookup=False)
    assert seconds(costs, 8, by_lookup=True) == pytest.approx(0.102)
    assert seconds(costs, 8, by_lookup=False) == pytest.approx(0.26)


def test_the_first_proposal_of_a_request_is_no_measure_of_steps() -> None:
    costs = RoundCosts()
    costs.announce(model_info((1, 100_000)))
    costs.observe(made_round(4, 0, draft_seconds=2.0, index=1))
    assert not costs.are_known(by_lookup=False)
    costs.observe(made_round(4, 0, draft_seconds=0.04))
    assert costs.draft_seconds(1, by_lookup=False) == pytest.approx(0.01)


def test_what_the_drafter_says_of_its_steps_is_believed() -> None:
    costs = RoundCosts()
    costs.announce(model_info((1, 100_000)))
    costs.observe(made_round(1, 0, draft_seconds=2.0, step_seconds=0.01, index=1))
    assert costs.draft_seconds(3, by_lookup=False) == pytest.approx(0.03)

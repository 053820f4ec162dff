"""Prediction of the duration of a round."""

from contextlib import ExitStack

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
    return costs.predicted(by_lookup=by_lookup).seconds(num_draft_tokens, num_draft_tokens)


def test_a_round_is_drafting_network_and_forward_pass() -> None:
    costs = RoundCosts()
    assert not costs.are_known(by_lookup=True)
    costs.announce(model_info((1, 100_000), (5, 140_000), (9, 180_000)))
    assert seconds(costs, 0, by_lookup=False) == pytest.approx(0.1)
    assert seconds(costs, 4, by_lookup=False) == pytest.approx(0.14)
    costs.observe(
        made_round(4, 2, verify_seconds=0.14, draft_seconds=0.04, network_seconds=0.02, draft_network_seconds=0.01)
    )
    assert seconds(costs, 4, by_lookup=False) == pytest.approx(4 * 0.01 + 0.03 + 0.14)
    # Nobody is asked for nothing.
    assert seconds(costs, 0, by_lookup=False) == pytest.approx(0.02 + 0.1)


def test_all_who_run_are_taken_to_do_the_same() -> None:
    costs = RoundCosts()
    costs.announce(model_info((1, 10_000), (101, 110_000)))
    with costs.running(), costs.running(), costs.running():
        assert seconds(costs, 0, by_lookup=True) == pytest.approx(0.012)
        with costs.running():
            assert costs.num_sequences == 4
            assert seconds(costs, 4, by_lookup=True) == pytest.approx(0.029)
    assert seconds(costs, 4, by_lookup=True) == pytest.approx(0.014)


def test_requests_are_spread_over_the_replicas_of_the_target() -> None:
    costs = RoundCosts(num_targets=lambda: 2)
    costs.announce(model_info((1, 10_000), (101, 110_000)))
    with ExitStack() as running:
        for _ in range(6):
            running.enter_context(costs.running())
        assert costs.num_sequences == 3
        costs.observe(made_round(0, 0, verify_seconds=0.012, batch_sequences=3))
        assert costs.num_sequences == 3


def test_others_in_the_passes_count_too() -> None:
    costs = RoundCosts()
    costs.announce(model_info((1, 10_000), (101, 110_000)))
    with costs.running():
        costs.observe(made_round(0, 0, verify_seconds=0.017, batch_sequences=8))
        assert costs.num_sequences == 8
        for _ in range(200):
            costs.observe(made_round(0, 0, verify_seconds=0.01, batch_sequences=1))
        assert costs.num_sequences == pytest.approx(1, abs=0.01)
        costs.observe(made_round(0, 0, verify_seconds=0.01, batch_sequences=1))
    assert costs.num_sequences == pytest.approx(1, abs=0.01)


def test_sequences_cost_the_same_with_and_without_drafts() -> None:
    costs = RoundCosts()
    info = model_info((1, 20_000), (33, 52_000))
    info.forward_costs.append(model_pb2.ForwardCost(rows=8, sequences=8, microseconds=97_000))
    costs.announce(info)
    with costs.running():
        assert seconds(costs, 3, by_lookup=True) - seconds(costs, 0, by_lookup=True) == pytest.approx(0.003)
    with ExitStack() as requests:
        for _ in range(7):
            requests.enter_context(costs.running())
        assert seconds(costs, 0, by_lookup=True) == pytest.approx(0.026 + 6 * 0.01)


def test_two_groups_take_turns_where_that_hides_the_drafting() -> None:
    costs = RoundCosts()
    # A row costs 10 ms, and a pass nothing besides.
    costs.announce(model_info((1, 10_000), (101, 1_010_000)))
    with costs.running(), costs.running():
        costs.observe(made_round(1, 0, draft_seconds=0.04, verify_seconds=0.02))
        # Together: a step of two, which takes twice as long, and a pass of four rows. In turns: two passes of two rows,
        # and one draft behind the pass of the other.
        assert seconds(costs, 1, by_lookup=False) == pytest.approx(max(2 * 0.02, 0.04 + 0.02))
        assert seconds(costs, 9, by_lookup=False) == pytest.approx(9 * 0.04 + 0.1)
        assert seconds(costs, 0, by_lookup=False) == pytest.approx(0.02)


def test_a_draft_step_is_taken_to_grow_with_its_sequences_as_a_pass_does() -> None:
    costs = RoundCosts()
    costs.announce(model_info((1, 10_000), (5, 20_000)))
    with costs.running():
        costs.observe(made_round(1, 0, draft_seconds=0.008, batch_rows=5, verify_seconds=0.02, draft_sequences=5))
        assert seconds(costs, 1, by_lookup=False) - seconds(costs, 1, by_lookup=True) == pytest.approx(0.004)


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
    costs.observe(made_round(4, 0, draft_seconds=2.0, catches_up=True))
    assert not costs.are_known(by_lookup=False)
    costs.observe(made_round(4, 0, draft_seconds=0.04))
    assert seconds(costs, 1, by_lookup=False) == pytest.approx(0.11)


def test_what_the_drafter_says_of_its_steps_is_believed() -> None:
    costs = RoundCosts()
    costs.announce(model_info((1, 100_000)))
    costs.observe(made_round(1, 0, draft_seconds=2.0, step_seconds=0.01, catches_up=True))
    assert seconds(costs, 3, by_lookup=False) == pytest.approx(0.13)

import pytest

from benchmarks.deployment.pass_log import Pass
from benchmarks.measuring.latency_cell import Figures, Generation, Place, cell
from benchmarks.measuring.latency_grid import measured_costs
from specdec.planning.acceptance import Acceptance
from specdec.planning.costs import Costs
from specdec.planning.pass_costs import PassCosts
from specdec.v1 import draft_pb2, generation_pb2, model_pb2


def report(accepted: int, ahead: draft_pb2.AheadOutcome.ValueType, compute: int) -> generation_pb2.RoundReport:
    return generation_pb2.RoundReport(
        round=1,
        num_draft_tokens=4,
        num_accepted_tokens=accepted,
        wall_microseconds=100_000,
        draft_wait_microseconds=30_000,
        verify_wait_microseconds=68_000,
        draft=model_pb2.Timings(queue_microseconds=1_000, compute_microseconds=compute),
        verify=model_pb2.Timings(queue_microseconds=2_000, compute_microseconds=40_000),
        draft_ahead=ahead,
    )


def forward(rows: int) -> Pass:
    return Pass(
        0, 1, 0.5, 1, forward_cpu_seconds=0, model_cpu_seconds=0, meter_cpu_seconds=0, num_sequences=1, num_rows=rows
    )


ROUNDS = (
    report(2, draft_pb2.AHEAD_OUTCOME_UNSPECIFIED, 24_000),
    report(4, draft_pb2.AHEAD_OUTCOME_HIT, 0),
    report(0, draft_pb2.AHEAD_OUTCOME_MISS, 24_000),
    report(2, draft_pb2.AHEAD_OUTCOME_HIT, 40_000),
)
GENERATION = Generation(0.4, 12, ROUNDS, (forward(5), forward(5), forward(5), forward(5)), (forward(20), forward(4)))


def test_figures_are_counted_back_to_the_device_meant() -> None:
    figures = Figures.of([GENERATION], time_scale=2.0)
    assert figures.measured_tokens_per_second == pytest.approx(60)
    assert (figures.num_rounds, figures.mean_draft_tokens, figures.mean_acceptance_length) == (4, 4, 3)
    assert figures.acceptance_rate == pytest.approx(0.5)
    assert figures.hit_rate == pytest.approx(2 / 3)
    assert figures.round_seconds == pytest.approx(0.05)
    assert figures.draft_compute_seconds == pytest.approx(0.011)
    assert figures.target_queue_seconds == pytest.approx(0.001)
    assert figures.target_compute_seconds == pytest.approx(0.02)
    # (5 + 29 + 5 + 0) / 4 of drafting, 26 of verifying, over two.
    assert figures.network_seconds == pytest.approx((39 / 4 + 26) / 2 / 1e3)
    assert figures.waiting_seconds == pytest.approx(0.001)
    assert figures.draft_rows_per_round == 6
    assert figures.wasted_drafts_per_round == 4
    assert figures.target_rows_per_round == 5


def test_a_cell_has_the_formula_and_the_requirement_beside_the_measurement() -> None:
    place = Place("ahead", 0.02, 0.8, 8)
    required = place.required(0.03, 0.003)
    assert required == 80
    costs = Costs(draft=PassCosts.constant(0.003), verify=PassCosts.constant(0.03), rtt_seconds=0.02)
    found = cell(place, Figures.of([GENERATION], 1.0), costs, Acceptance((0.8,)), required=required)
    # E(8) over L - h * K * t_draft, with the hit rate that was measured.
    assert found["predicted_round_seconds"] == pytest.approx(0.074 - 2 / 3 * 0.024)
    assert found["predicted_tokens_per_second"] == pytest.approx((1 - 0.8**9) / 0.2 / 0.058)
    assert found["measured_tokens_per_second"] == pytest.approx(30)
    assert found["is_met"] is False


@pytest.mark.parametrize(
    ("place", "target_seconds"),
    [
        (Place("ahead", 0.02, 0.7, 8), 0.03),
        (Place("ahead", 0.02, None, 8), 0.03),
        (Place("ahead", 0.01, 0.8, 8), 0.03),
        (Place("ahead", 0.02, 0.8, 8), 0.02),
    ],
)
def test_nothing_is_required_elsewhere(place: Place, target_seconds: float) -> None:
    assert place.required(target_seconds, 0.003) is None


def test_without_drafts_there_is_no_rate_of_acceptance() -> None:
    plain = generation_pb2.RoundReport(round=1, wall_microseconds=10)
    figures = Figures.of([Generation(1.0, 1, (plain,), (), ())], 1.0)
    assert figures.acceptance_rate is None
    assert figures.hit_rate is None


def test_costs_of_a_real_pair_are_those_of_its_rounds() -> None:
    under_way = report(1, draft_pb2.AHEAD_OUTCOME_MISS, 24_000)
    under_way.is_candidate = True
    under_way.verify_wait_microseconds = 0
    costs = measured_costs([*ROUNDS, under_way])
    # Three rounds had to draft, 24 ms for 4 tokens each.
    assert costs.draft.seconds(1) == pytest.approx(0.006)
    assert costs.verify.seconds(5) == pytest.approx(0.04)
    assert costs.rtt_seconds == pytest.approx(0.026)
    assert costs.draft_rtt_seconds == pytest.approx((5 + 29 + 5 + 0 + 5) / 5 / 1e3)
    assert costs.overhead_seconds == pytest.approx((4 * 2 + 70) / 5 / 1e3)


def test_the_formula_takes_the_k_that_was_run() -> None:
    place = Place("off", 0.0, None, None)
    costs = Costs(draft=PassCosts.constant(0.01), verify=PassCosts.constant(0.03))
    figures = Figures.of([GENERATION], 1.0)
    best = cell(place, figures, costs, Acceptance((0.5,)), required=None)
    run = cell(place, figures, costs, Acceptance((0.5,)), required=None, num_draft_tokens=4)
    assert run["predicted_round_seconds"] == pytest.approx(0.07)
    assert best["predicted_round_seconds"] == pytest.approx(0.04)

import pytest

from benchmarks.measuring.load_figures import Figures, Goals, LoadWindow, median, medians, percentile, window_figures
from tests.benchmarks.measuring.load_records import a_pass, request

GOALS = Goals(ttft_seconds=1.0, inter_token_seconds=0.25)
RECORDS = [
    # Began before the window: its tokens count from 10 on, its time to the first token does not.
    request(7.0, [(8.0, 1), (9.5, 2), (10.5, 3), (11.0, 1)], drafted=4, accepted=2),
    request(11.0, [(11.5, 1), (12.5, 4), (13.5, 5)], drafted=4, accepted=4),
    # Too late for the goal, and then cut off.
    request(12.0, [(14.0, 1), (15.0, 1)], is_finished=False),
    # Its tokens come after the window.
    request(19.0, [(20.5, 1)]),
]
WINDOW = LoadWindow(
    10.0,
    20.0,
    RECORDS,
    [a_pass(9, 11, sequences=2, rows=10, planned=1.5), a_pass(12, 15, sequences=4, rows=20, planned=1.0)],
    [],
    {"target": 5.0, "orchestrator": 1.0},
)


def test_what_falls_into_the_window_counts() -> None:
    found = window_figures(WINDOW, GOALS)
    assert found["tokens_per_second"] == pytest.approx((3 + 1 + 1 + 4 + 5 + 1 + 1) / 10)
    assert found["num_rounds"] == 5
    assert found["num_ttfts"] == 2
    assert found["ttft_seconds_p50"] == pytest.approx(1.25)
    assert found["num_completed"] == 2
    assert found["draft_tokens_per_round"] == pytest.approx(16 / 5)
    assert found["acceptance_rate"] == pytest.approx(12 / 16)
    assert found["mean_acceptance_length"] == pytest.approx(1 + 12 / 5)
    assert found["cached_prompt_share"] == pytest.approx(0.4)
    assert found["orchestrator_cpu_seconds_per_round"] == pytest.approx(0.2)
    assert (found["target_cpu_share"], found["orchestrator_cpu_share"]) == (0.5, 0.1)


def test_a_delta_of_several_tokens_is_as_many_short_waits() -> None:
    found = window_figures(WINDOW, GOALS)
    # A third of a second three times, half a second, a quarter four times, a fifth five times, and a whole one.
    waits = [1 / 3] * 3 + [0.5] + [0.25] * 4 + [0.2] * 5 + [1.0]
    assert found["inter_token_seconds_p50"] == pytest.approx(percentile(waits, 0.5))
    assert found["inter_token_seconds_p99"] == pytest.approx(percentile(waits, 0.99))
    assert found["delta_gap_seconds_p99"] == pytest.approx(1.0)


def test_goodput_counts_requests_that_keep_both_goals() -> None:
    found = window_figures(WINDOW, GOALS)
    # The first took 3 s for 6 tokens after its first; the second 2 s for 9, and its first within half a second.
    assert found["goodput_requests_per_second"] == pytest.approx(0.1)
    assert found["share_within_goals"] == pytest.approx(0.5)
    generous = window_figures(WINDOW, Goals(1.0, 0.5))
    assert generous["share_within_goals"] == 1
    assert window_figures(WINDOW, Goals(0.4, 0.5))["share_within_goals"] == 0


def test_passes_are_busy_within_the_window_and_late_against_their_plan() -> None:
    found = window_figures(WINDOW, GOALS)
    assert found["target_busy_share"] == pytest.approx((1 + 3) / 10)
    assert found["target_pass_seconds_mean"] == pytest.approx(2.5)
    assert (found["target_sequences_mean"], found["target_sequences_max"]) == (3, 4)
    assert (found["target_rows_mean"], found["target_rows_max"]) == (15, 20)
    # Half of each pass was computing: 1 s of 1.5 planned, and 1.5 s of 1.0.
    assert found["target_late_share"] == pytest.approx(0.5)
    assert found["target_clock_error_seconds_p99"] == pytest.approx(0.5)
    for name in ("busy_share", "pass_seconds_mean", "sequences_mean", "rows_max", "late_share"):
        assert found[f"draft_{name}"] is None


def test_a_simulation_is_told_on_its_own_clock() -> None:
    plain, scaled = (window_figures(WINDOW, Goals(5, 5), time_scale=scale) for scale in (1, 4))
    for name in ("tokens_per_second", "requests_per_second", "goodput_requests_per_second"):
        assert scaled[name] == pytest.approx(4 * (plain[name] or 0))
    for name in ("ttft_seconds_p50", "inter_token_seconds_p99", "delta_gap_seconds_p99", "target_pass_seconds_mean"):
        assert scaled[name] == pytest.approx((plain[name] or 0) / 4)
    for name in ("target_busy_share", "target_cpu_share", "acceptance_rate", "target_clock_error_seconds_p99"):
        assert scaled[name] == plain[name]
    assert window_figures(WINDOW, Goals(0.25, 0.0625), time_scale=4)["share_within_goals"] == 0.5


def test_an_empty_window_has_no_latencies() -> None:
    found = window_figures(LoadWindow(0, 1, [], [], [], {"orchestrator": 0.5}), GOALS)
    assert found["tokens_per_second"] == 0
    for name in ("ttft_seconds_p50", "share_within_goals", "acceptance_rate", "orchestrator_cpu_seconds_per_round"):
        assert found[name] is None


def test_percentiles_lie_between_values() -> None:
    assert [percentile([3, 1, 2, 4], share) for share in (0, 0.5, 0.9, 1)] == pytest.approx([1, 2.5, 3.7, 4])
    assert percentile([5], 0.99) == 5
    assert percentile([], 0.5) is None


def test_medians_are_over_the_repeats_in_which_a_figure_applies() -> None:
    repeats: list[Figures] = [{"a": 1.0, "b": None}, {"a": 5.0, "b": 2.0}, {"a": 2.0, "b": None}]
    assert medians(repeats) == {"a": 2, "b": 2}
    assert median([None, None]) is None

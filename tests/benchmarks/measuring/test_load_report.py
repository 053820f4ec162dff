import pytest

from benchmarks.measuring.load_figures import Figures
from benchmarks.measuring.load_report import (
    Point,
    auto_choices,
    by_clients,
    cells,
    comparisons,
    gain_by_pass,
    gain_by_round,
    renamed,
)
from tests.benchmarks.measuring.load_records import figures

# The machine is twice as slow in the second repeat, and something stalls one point of the third.
MEASURED: dict[Point, list[Figures]] = {
    Point("split", 1, 0): [figures(10), figures(5), figures(10)],
    Point("split", 1, 4): [figures(15), figures(7.5), figures(1)],
    Point("split", 8, 0): [figures(40), figures(20), figures(40)],
    Point("split", 8, 4): [figures(50), figures(25), figures(50)],
    Point("split", 8, None): [figures(48), figures(24), figures(48)],
}


def test_ratios_are_taken_within_a_repeat() -> None:
    found = {(cell["num_clients"], cell["num_draft_tokens"]): cell for cell in cells(MEASURED)}
    assert found[1, "4"]["over_k0"] == pytest.approx(1.5)
    assert found[8, "4"]["over_k0"] == pytest.approx(1.25)
    assert found[8, "0"]["over_one_client"] == pytest.approx(4)
    assert found[1, "0"]["over_k0"] == found[1, "0"]["over_one_client"] == 1
    assert found[8, "auto"]["over_one_client"] is None, "one client was not measured with K = auto"
    assert found[8, "0"]["tokens_per_second"] == 40
    assert [each["tokens_per_second"] for each in found[8, "0"]["repeats"]] == [40, 20, 40]


def test_auto_is_held_against_the_best_fixed_k() -> None:
    (choice,) = auto_choices(MEASURED)
    assert choice == {
        "side": "split",
        "num_clients": 8,
        "num_draft_tokens": "auto",
        "best_fixed_num_draft_tokens": "4",
        "over_best_fixed": pytest.approx(0.96),
        "over_k0": pytest.approx(1.2),
    }


def test_the_gain_by_round_is_what_drafting_takes_of_a_shared_device() -> None:
    # 30 passes of 10 ms beside 10 of 60 ms: half as much drafting as verifying, whatever the batches.
    shared = figures(20, target_pass=0.06, target_passes=10, draft_pass=0.01, draft_passes=30)
    assert gain_by_round(shared) == pytest.approx(1.5)
    assert gain_by_round(figures(20, target_pass=0.06, target_passes=10)) is None


def test_the_gain_by_pass_is_the_formula_with_mean_passes() -> None:
    assert gain_by_pass(figures(1, draft_tokens=4, target_pass=0.1, draft_pass=0.01)) == pytest.approx(1.4)
    assert gain_by_pass(figures(1, draft_tokens=4, target_pass=0.1)) is None
    assert gain_by_pass(figures(1, target_pass=0.1, draft_pass=0.01)) is None


def test_split_is_compared_with_the_same_point_beside_each_other() -> None:
    split = figures(33, draft_tokens=4, target_pass=0.1, draft_pass=0.01, busy=0.95)
    beside = figures(22, target_pass=0.1, target_passes=10, draft_pass=0.01, draft_passes=50)
    measured: dict[Point, list[Figures]] = {
        Point("split", 8, 4): [split, split],
        Point("split", 8, 0): [figures(30), figures(30)],
        Point("colocated", 8, 4): [beside, beside],
    }
    (row,) = comparisons(measured)
    assert row == {
        "num_clients": 8,
        "num_draft_tokens": "4",
        "split_over_colocated": pytest.approx(1.5),
        "formula_by_round": pytest.approx(1.5),
        "formula_by_pass": pytest.approx(1.4),
        "share_of_formula_by_round": pytest.approx(1),
        "share_of_formula_by_pass": pytest.approx(1.5 / 1.4),
        "target_busy_share": 0.95,
    }


def test_every_figure_of_a_simulation_is_named_so() -> None:
    row = {"side": "split", "num_clients": 8, "num_draft_tokens": "4", "a": 1.0, "repeats": [{"b": None}]}
    assert renamed([row], "simulated_") == [
        {
            "side": "split",
            "num_clients": 8,
            "num_draft_tokens": "4",
            "simulated_a": 1.0,
            "repeats": [{"simulated_b": None}],
        }
    ]


def test_curves_leave_out_what_does_not_apply() -> None:
    found = [
        {"side": "split", "num_clients": n, "num_draft_tokens": "0", "rate": rate} for n, rate in ((8, 3.0), (1, 1.0))
    ]
    found += [{"side": "split", "num_clients": 4, "num_draft_tokens": "4", "rate": None}]
    assert by_clients(found, "split", lambda cell: cell["rate"]) == {"0": [(1, 1.0), (8, 3.0)]}
    assert by_clients(found, "colocated", lambda cell: cell["rate"]) == {}

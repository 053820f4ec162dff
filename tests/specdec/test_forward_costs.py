"""What a forward pass is expected to take."""

import pytest

from specdec.forward_costs import ForwardCosts

POINTS = [(1, 0.01), (2, 0.016), (5, 0.016), (9, 0.02)]


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [(0.5, 0.01), (1, 0.01), (1.5, 0.013), (2, 0.016), (4, 0.016), (7, 0.018), (9, 0.02), (17, 0.028)],
)
def test_costs_are_linear_between_and_beyond_the_points(rows: float, seconds: float) -> None:
    assert ForwardCosts(POINTS).seconds(rows) == pytest.approx(seconds)


def test_more_rows_never_cost_less() -> None:
    costs = ForwardCosts([(1, 0.02), (2, 0.01), (4, 0.03)])
    assert [costs.seconds(rows) for rows in (1, 2, 3)] == pytest.approx([0.02, 0.02, 0.025])
    for _ in range(100):
        costs.observe(4, 0.001)
    assert costs.seconds(8) >= costs.seconds(4)


@pytest.mark.parametrize("points", [[], [(0, 0.1)], [(1, 0.0)], [(2, 0.1), (2, 0.2)], [(3, 0.1), (2, 0.2)]])
def test_points_that_are_no_costs(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="forward costs"):
        ForwardCosts(points)


def test_what_is_run_is_learnt_and_what_is_not_run_is_not_thought_much_dearer() -> None:
    costs, before = ForwardCosts(POINTS), ForwardCosts(POINTS)
    for _ in range(60):
        costs.observe(9, 3 * before.seconds(9))
    assert costs.seconds(9) == pytest.approx(3 * before.seconds(9), rel=0.05)
    assert costs.seconds(1) < 1.5 * before.seconds(1)


def test_fewer_rows_never_take_longer() -> None:
    costs = ForwardCosts(POINTS)
    for _ in range(60):
        costs.observe(1, 0.05)
    assert costs.seconds(9) >= costs.seconds(5) >= costs.seconds(1)
    assert costs.seconds(1) == pytest.approx(0.05, rel=0.05)
    for _ in range(100):
        costs.observe(9, 0.02)
    assert costs.seconds(1) <= costs.seconds(9) == pytest.approx(0.02, rel=0.05)


def test_the_shape_follows_passes_of_different_sizes() -> None:
    costs = ForwardCosts(POINTS)
    for _ in range(400):
        costs.observe(1, 0.01)
        costs.observe(5, 0.03)
    assert costs.seconds(1) == pytest.approx(0.01, rel=0.1)
    assert costs.seconds(5) == pytest.approx(0.03, rel=0.1)


def test_one_stall_moves_little() -> None:
    costs = ForwardCosts(POINTS)
    costs.observe(1, 60.0)
    assert costs.seconds(1) < 0.012
    costs.observe(0, 1.0)
    costs.observe(3, 0.0)
    assert costs.seconds(1) < 0.012


def test_sequences_cost_besides_their_rows() -> None:
    costs = ForwardCosts.measured([(1, 1, 0.02), (9, 1, 0.028), (8, 8, 0.062)])
    assert costs.seconds(8) == pytest.approx(0.027)
    assert costs.seconds(8, 8) == pytest.approx(0.062)
    assert costs.seconds(16, 8) == pytest.approx(0.07)
    assert costs.empty_seconds(8) == pytest.approx(2 * 0.023 - 0.027 - 0.005)
    assert ForwardCosts.measured([(1, 1, 0.02), (9, 1, 0.028), (8, 8, 0.01)]).seconds(8, 8) == pytest.approx(0.027)


def test_what_sequences_cost_is_learnt_from_passes_of_different_kinds() -> None:
    truth, costs = ForwardCosts(POINTS, 0.003), ForwardCosts(POINTS, 0.001)
    for _ in range(600):
        for rows, sequences in ((1, 1), (5, 1), (9, 1), (8, 8), (16, 4)):
            costs.observe(rows, truth.seconds(rows, sequences), sequences)
    assert costs.seconds(8, 8) == pytest.approx(truth.seconds(8, 8), rel=0.05)
    assert costs.seconds(9) == pytest.approx(truth.seconds(9), rel=0.1)


@pytest.mark.parametrize("passes", [[], [(8, 8, 0.1)], [(1, 0, 0.1)], [(1, 1, 0.1), (1, 1, 0.1)]])
def test_passes_that_say_nothing(passes: list[tuple[int, int, float]]) -> None:
    with pytest.raises(ValueError, match="forward costs"):
        ForwardCosts.measured(passes)
    with pytest.raises(ValueError, match="forward costs"):
        ForwardCosts([(1, 0.1)], -0.1)

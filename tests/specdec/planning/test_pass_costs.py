from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.planning.pass_costs import PassCosts, PassPoint
from tests.specdec.planning.numbers import pass_costs


def test_linear_between_points_and_beyond() -> None:
    costs = PassCosts([PassPoint(10, 0.04), PassPoint(2, 0.02)])
    assert [costs.seconds(rows) for rows in (1, 2, 6, 10, 14)] == pytest.approx([0.02, 0.02, 0.03, 0.04, 0.05])
    assert costs.seconds(6, 50) == pytest.approx(0.03)


def test_one_number_holds_for_all() -> None:
    costs = PassCosts.constant(0.03)
    assert costs.is_constant
    assert costs.seconds(1) == costs.seconds(1000, 100) == 0.03


def test_sequences_make_a_difference_where_they_were_measured() -> None:
    costs = PassCosts([PassPoint(5, 0.02, 1), PassPoint(45, 0.06, 1), PassPoint(5, 0.03, 5), PassPoint(45, 0.07, 5)])
    assert costs.seconds(25, 1) == pytest.approx(0.04)
    assert costs.seconds(25, 3) == pytest.approx(0.045)
    assert costs.seconds(25, 5) == pytest.approx(0.05)
    assert costs.seconds(25, 9) == pytest.approx(0.06)


@given(pass_costs(), st.floats(1, 2000), st.floats(1, 2000), st.floats(1, 50))
def test_more_rows_never_take_less(costs: PassCosts, rows: float, others: float, sequences: float) -> None:
    low, high = sorted((rows, others))
    assert costs.seconds(low, sequences) <= costs.seconds(high, sequences) * (1 + 1e-9)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5), st.floats(0.001, 1)), min_size=1), st.floats(1, 9))
def test_more_sequences_never_take_less(points: list[tuple[int, int, float]], rows: float) -> None:
    known = {(count, sequences): seconds for sequences, count, seconds in points}
    costs = PassCosts(PassPoint(count, seconds, sequences) for (count, sequences), seconds in known.items())
    durations = [costs.seconds(rows, sequences / 2) for sequences in range(2, 12)]
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(durations))


@pytest.mark.parametrize(
    "points",
    [
        [],
        [PassPoint(0, 1.0)],
        [PassPoint(1, 0.0)],
        [PassPoint(1, 1.0), PassPoint(1, 2.0)],
        [PassPoint(1, 1.0), PassPoint(2, 2.0, 1)],
        [PassPoint(1, 1.0, 0)],
    ],
)
def test_points_that_cannot_be(points: list[PassPoint]) -> None:
    with pytest.raises(ValueError, match=r"pass|costs"):
        PassCosts(points)

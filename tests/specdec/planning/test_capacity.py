import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.planning.capacity import Serving

linear = Serving(lambda n: 0.01 + 0.001 * n, lambda _, __: 0.0)


def test_all_clients_in_each_pass_if_they_are_never_away() -> None:
    shift = linear.most_clients(0.03, 1000)
    assert shift is not None
    assert (shift.num_clients, shift.num_groups) == (20, 1)
    assert shift.round_seconds == pytest.approx(0.03)
    assert shift.busy_share == pytest.approx(1)


def test_groups_take_turns_while_others_are_away() -> None:
    # Passes of 10 ms whatever is in them, and 30 ms away: four groups keep the target busy.
    shift = Serving(lambda n: 0.01 * max(1.0, n / 8), lambda _, __: 0.03).most_clients(0.04, 1000)
    assert shift is not None
    assert (shift.num_clients, shift.num_groups) == (32, 4)
    assert shift.busy_share == pytest.approx(1)


def test_a_lone_client_leaves_the_target_idle_while_it_is_away() -> None:
    shift = Serving(lambda n: 0.01, lambda _, __: 0.03).shift(1, 1.0)
    assert shift is not None
    assert shift.round_seconds == pytest.approx(0.04)
    assert shift.busy_share == pytest.approx(0.25)


def test_a_goal_that_cannot_be_kept() -> None:
    assert linear.most_clients(0.0109, 100) is None
    assert linear.most_clients(1.0, 0) is None


def test_the_limit() -> None:
    shift = linear.most_clients(10.0, 7)
    assert shift is not None
    assert shift.num_clients == 7


seconds = st.floats(0.0001, 0.05)


@given(seconds, seconds, st.floats(0, 0.1), st.floats(0.001, 0.5), st.integers(1, 60))
def test_the_most_clients_are_the_most(fixed: float, each: float, away: float, goal: float, limit: int) -> None:
    serving = Serving(lambda n: fixed + each * n, lambda _, __: away)
    possible = [count for count in range(1, limit + 1) if serving.shift(count, goal) is not None]
    found = serving.most_clients(goal, limit)
    assert (found.num_clients if found else 0) == len(possible) == max(possible, default=0)


@given(seconds, seconds, st.floats(0, 0.1), st.floats(0, 0.1), st.floats(0.001, 0.5))
def test_who_is_away_longer_is_never_served_in_greater_number(
    fixed: float, each: float, away: float, more: float, goal: float
) -> None:
    def count(away_seconds: float) -> int:
        found = Serving(lambda n: fixed + each * n, lambda _, __: away_seconds).most_clients(goal, 60)
        return found.num_clients if found else 0

    assert count(away + more) <= count(away)

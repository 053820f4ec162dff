import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.planning.capacity import Absence, Serving


def serving(fixed: float, each: float, *absences: tuple[float, float], waits: bool = False) -> Serving:
    """Passes of n sequences take `fixed + each * n`; clients are away in these ways, each (share, seconds)."""
    return Serving(lambda n: fixed + each * n, lambda _, __: [Absence(*absence) for absence in absences], waits)


def test_all_clients_in_each_pass_if_they_are_never_away() -> None:
    shift = serving(0.01, 0.001, (1.0, 0.0)).most_clients(0.03, 1000)
    assert shift is not None
    assert (shift.num_clients, shift.num_groups) == (20, 1)
    assert shift.round_seconds == pytest.approx(0.03)
    assert shift.busy_share == pytest.approx(1)


def test_groups_take_turns_while_others_are_away() -> None:
    # Passes of 10 ms whatever is in them up to eight, and 30 ms away: each misses three, so there are four groups.
    shift = Serving(lambda n: 0.01 * max(1.0, n / 8), lambda _, __: [Absence(1.0, 0.03)]).most_clients(0.04, 1000)
    assert shift is not None
    assert (shift.num_clients, shift.num_groups) == (32, 4)
    assert shift.busy_share == pytest.approx(1)


def test_clients_that_draft_come_in_two_groups() -> None:
    """As measured: 16 clients with K = 4, passes of 30 ms and 2 ms a sequence, 12 ms of drafting, eight in a pass."""
    shift = serving(0.03, 0.002, (1.0, 0.012)).shift(16)
    assert shift.num_groups == 2
    assert shift.round_seconds == pytest.approx(0.092)


def test_a_target_that_waits_keeps_them_together() -> None:
    shift = serving(0.03, 0.002, (1.0, 0.012), waits=True).shift(16)
    assert shift.num_groups == 1
    assert shift.round_seconds == pytest.approx(0.074)
    assert shift.busy_share == pytest.approx(62 / 74)


def test_who_is_not_away_misses_no_pass() -> None:
    # Three in four are in the next pass, one in four misses one: 20 clients, 16 in each pass of 62 ms.
    shift = serving(0.03, 0.002, (0.75, 0.0), (0.25, 0.012)).shift(20)
    assert shift.num_groups == pytest.approx(1.25)
    assert shift.pass_seconds == pytest.approx(0.062)
    assert shift.round_seconds == pytest.approx(0.0775)


def test_a_lone_client_leaves_the_target_idle_while_it_is_away() -> None:
    shift = serving(0.01, 0.0, (1.0, 0.03)).shift(1)
    assert shift.round_seconds == pytest.approx(0.04)
    assert shift.busy_share == pytest.approx(0.25)


def test_a_goal_that_cannot_be_kept() -> None:
    assert serving(0.01, 0.001, (1.0, 0.0)).most_clients(0.0109, 100) is None
    assert serving(0.01, 0.001, (1.0, 0.0)).most_clients(1.0, 0) is None


def test_the_limit() -> None:
    shift = serving(0.01, 0.001, (1.0, 0.0)).most_clients(10.0, 7)
    assert shift is not None
    assert shift.num_clients == 7


seconds = st.floats(0.0001, 0.05)
away = st.floats(0, 0.1)
shares = st.floats(0, 1)


@given(seconds, seconds, away, away, shares, st.floats(0.001, 0.5), st.integers(1, 60), st.booleans())
def test_the_most_clients_are_the_most(
    fixed: float, each: float, one: float, other: float, share: float, goal: float, limit: int, waits: bool
) -> None:
    tried = serving(fixed, each, (share, one), (1 - share, other), waits=waits)
    possible = [count for count in range(1, limit + 1) if tried.shift(count).round_seconds <= goal]
    found = tried.most_clients(goal, limit)
    assert (found.num_clients if found else 0) == max(possible, default=0)


@given(seconds, seconds, away, st.integers(1, 60))
def test_the_target_is_busy_if_there_are_enough_clients(fixed: float, each: float, gone: float, count: int) -> None:
    shift = serving(fixed, each, (1.0, gone)).shift(count)
    assert shift.busy_share == pytest.approx(1) or shift.num_groups == count
    assert shift.round_seconds >= gone + shift.pass_seconds - 1e-9


@given(seconds, seconds, away, away, shares, away, st.integers(1, 60))
def test_who_is_away_longer_never_has_shorter_rounds(
    fixed: float, each: float, one: float, other: float, share: float, more: float, count: int
) -> None:
    before = serving(fixed, each, (share, one), (1 - share, other)).shift(count)
    after = serving(fixed, each, (share, one + more), (1 - share, other)).shift(count)
    assert after.round_seconds >= before.round_seconds * (1 - 1e-6)

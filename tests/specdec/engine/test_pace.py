"""How much prefill goes beside running sequences."""

from __future__ import annotations

import pytest

from specdec.engine.pace import PrefillPace

MAX_ROWS = 512


def seconds(num_running_rows: int, num_prefill_rows: int, row_seconds: float) -> float:
    """A pass that takes 0.1 s, and more for each row of prefill."""
    return (0.1 if num_running_rows else 0.08) + row_seconds * num_prefill_rows


@pytest.mark.parametrize(
    ("row_seconds", "expected"), [(0.004, 25), (0.001, 100), (0.0001, MAX_ROWS), (0.0, MAX_ROWS), (0.1, 8)]
)
def test_a_pass_with_prefill_comes_to_last_twice_as_long(row_seconds: float, expected: int) -> None:
    pace = PrefillPace(MAX_ROWS)
    assert pace.rows() == 32
    for _ in range(40):
        rows = pace.rows()
        pace.observe(seconds(4, 0, row_seconds), 4, 0)
        pace.observe(seconds(4, rows, row_seconds), 4, rows)
        pace.observe(seconds(0, 100, row_seconds), 0, 100)  # nobody was kept waiting by it
    assert pace.rows() == pytest.approx(expected, abs=1)


def test_it_follows_a_context_that_grows() -> None:
    pace = PrefillPace(MAX_ROWS)
    pace.observe(0.1, 4, 0)
    longest = 0.0
    for chunk in range(100):
        rows = pace.rows()
        took = seconds(4, rows, 0.001 * (1 + chunk / 20))
        longest = max(longest, took)
        pace.observe(took, 4, rows)
    assert longest < 0.25


def test_a_stall_of_the_machine_is_not_taken_for_the_cost_of_rows() -> None:
    pace = PrefillPace(MAX_ROWS)
    rows = []
    for number in range(60):
        stall = 3.0 if number % 10 == 9 else 0.0
        pace.observe(seconds(4, 0, 0.002) + stall, 4, 0)
        rows.append(pace.rows())
        pace.observe(seconds(4, rows[-1], 0.002) + (stall if number % 20 == 9 else 0.0), 4, rows[-1])
    assert min(rows[5:]) >= 30
    assert max(rows) <= 90


def test_the_small_end_of_a_prompt_changes_nothing() -> None:
    pace = PrefillPace(MAX_ROWS)
    pace.observe(0.1, 4, 0)
    pace.observe(0.11, 4, 3)
    assert pace.rows() == 32


def test_a_setting_is_kept_to() -> None:
    pace = PrefillPace(MAX_ROWS, fixed_rows=64)
    for _ in range(5):
        pace.observe(0.1, 4, 0)
        pace.observe(9.0, 4, 64)
        assert pace.rows() == 64
    assert PrefillPace(16, fixed_rows=64).rows() == 16
    assert PrefillPace(16).rows() == 16

"""What passes take by their rows, and how many outcomes are worth that."""

from __future__ import annotations

import math
import random

import pytest

from draft_service.ahead.outcomes import num_worthwhile
from draft_service.ahead.pass_times import PassTimes

PROBABILITIES = [0.2, 0.15, 0.1, 0.05, 0.02, 0.01]


def line(base: float, per_row: float, *, noise: float = 0.0) -> PassTimes:
    """After passes of many sizes."""
    generator = random.Random(1)
    times = PassTimes()
    for _ in range(300):
        rows = generator.choice([1, 1, 1, 4, 8, 12])
        times.observe(rows, (base + per_row * rows) * (1.0 + noise * generator.uniform(-1, 1)))
    return times


def test_a_line_is_found_in_noise() -> None:
    times = line(7.0, 1.7, noise=0.1)
    assert times.seconds_per_row == pytest.approx(1.7, rel=0.15)
    assert times.seconds(1) == pytest.approx(8.7, rel=0.15)
    assert times.seconds(16) == pytest.approx(34.2, rel=0.15)


def test_it_follows_a_machine_that_gets_slower() -> None:
    times = line(7.0, 1.7)
    for step in range(200):
        times.observe(1 + step % 8, 14.0 + 3.4 * (1 + step % 8))
    assert times.seconds(4) == pytest.approx(27.6, rel=0.05)


def test_passes_of_one_size_say_nothing_of_others() -> None:
    times = PassTimes()
    assert times.seconds(3) == 0.0
    for _ in range(5):
        times.observe(1, 8.0)
    assert (times.seconds(1), times.seconds(9)) == (8.0, 8.0)


def test_all_outcomes_while_nothing_is_known_and_where_there_is_time() -> None:
    assert num_worthwhile(PROBABILITIES, 4, 1, math.inf, PassTimes()) == 6
    assert num_worthwhile(PROBABILITIES, 4, 1, -1.0, PassTimes()) == 6
    assert num_worthwhile(PROBABILITIES, 4, 1, math.inf, line(7.0, 1.7)) == 6
    # Rows that cost nothing, as on a GPU.
    assert num_worthwhile(PROBABILITIES, 4, 1, 40.0, line(8.0, 0.0)) == 6


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, 0), (8.0, 0), (40.0, 1), (48.0, 2), (60.0, 4), (80.0, 6)])
def test_fewer_where_rows_cost_time_that_is_not_there(seconds: float, expected: int) -> None:
    assert num_worthwhile(PROBABILITIES, 4, 1, seconds, line(7.0, 1.7)) == expected


def test_what_is_missing_takes_time_too() -> None:
    assert num_worthwhile(PROBABILITIES, 4, 17, 80.0, line(7.0, 1.7)) < num_worthwhile(
        PROBABILITIES, 4, 1, 80.0, line(7.0, 1.7)
    )

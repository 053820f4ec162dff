"""Which outcomes are drafted ahead for: a pure function of measured rates."""

from __future__ import annotations

import pytest

from draft_service.ahead.outcomes import Outcome, likeliest_outcomes


def only(outcomes: list[tuple[Outcome, float]]) -> list[Outcome]:
    return [outcome for outcome, _ in outcomes]


def test_probabilities_are_those_of_the_outcomes() -> None:
    found = dict(likeliest_outcomes(2, 0.6, 0.5, 99))
    assert found[Outcome(0, 0)] == pytest.approx(0.4 * 0.5)
    assert found[Outcome(0, 1)] == pytest.approx(0.4 * 0.5 * 0.5)
    assert found[Outcome(1, 0)] == pytest.approx(0.6 * 0.4 * 0.5)
    assert found[Outcome(2, 0)] == pytest.approx(0.6 * 0.6 * 0.6)
    assert found[Outcome(2, 1)] == pytest.approx(0.36 * 0.4 * 0.5)
    assert sum(found.values()) <= 1.0


def test_a_window_that_is_mostly_accepted_has_its_end_first() -> None:
    assert only(likeliest_outcomes(4, 0.9, 0.4, 3))[0] == Outcome(4, 0)
    assert only(likeliest_outcomes(4, 0.2, 0.4, 3)) == [Outcome(0, 0), Outcome(0, 1), Outcome(0, 2)]


def test_likely_counts_get_more_next_tokens() -> None:
    counts = [0] * 4
    for outcome in only(likeliest_outcomes(3, 0.5, 0.5, 6)):
        counts[outcome.num_accepted] += 1
    assert counts[0] > counts[2]


@pytest.mark.parametrize("max_count", [0, 1, 5])
def test_the_likeliest_come_first_and_no_more_than_asked_for(max_count: int) -> None:
    found = likeliest_outcomes(5, 0.8, 0.4, max_count)
    assert len(found) == max_count
    rates = [rate for _, rate in found]
    assert rates == sorted(rates, reverse=True)
    assert only(likeliest_outcomes(5, 0.8, 0.4, 99))[:max_count] == only(found)


def test_long_shots_are_left_out() -> None:
    assert only(likeliest_outcomes(8, 0.1, 0.9, 99)) == [Outcome(0, 0), Outcome(1, 0), Outcome(0, 1)]

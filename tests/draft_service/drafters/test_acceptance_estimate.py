"""The chance that a draft token is accepted, from those that were."""

from __future__ import annotations

import itertools
import random

import pytest

from draft_service.drafters.acceptance_estimate import AcceptanceEstimate, expected_accepted


def test_before_anything_is_seen_it_is_the_prior() -> None:
    assert AcceptanceEstimate().rate(0.3) == pytest.approx(0.3)


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_it_comes_near_the_chance_whatever_the_prior(chance: float) -> None:
    source = random.Random(0)
    estimate = AcceptanceEstimate()
    rates = []
    for _ in range(2000):
        accepted = next(count for count in itertools.count() if count == 4 or source.random() >= chance)
        estimate.add(accepted, was_rejected=accepted < 4)
        rates.append((estimate.rate(0.05), estimate.rate(0.95)))
    for of_prior in zip(*rates[100:], strict=True):
        assert sum(of_prior) / len(of_prior) == pytest.approx(chance, abs=0.15)


def test_it_follows_a_change_within_some_rounds() -> None:
    estimate = AcceptanceEstimate()
    for _ in range(1000):
        estimate.add(4, was_rejected=False)
    assert estimate.rate(0.5) > 0.9
    for _ in range(75):
        estimate.add(0, was_rejected=True)
    assert estimate.rate(0.5) < 0.4


def test_what_was_seen_fades_until_the_prior_is_left() -> None:
    estimate = AcceptanceEstimate()
    for _ in range(100):
        estimate.add(0, was_rejected=True)
    assert estimate.rate(0.6) < 0.3
    for _ in range(400):
        estimate.fade()
    assert estimate.rate(0.6) == pytest.approx(0.6, abs=1e-3)


def test_it_does_not_grow_without_bound() -> None:
    estimate = AcceptanceEstimate()
    for _ in range(10_000):
        estimate.add(4, was_rejected=True)
    assert estimate.num_accepted < 140
    assert estimate.num_rejected < 35


@pytest.mark.parametrize(
    ("rate", "num_draft_tokens", "expected"), [(0.5, 3, 0.875), (1.0, 4, 4.0), (0.0, 4, 0.0), (0.7, 0, 0.0)]
)
def test_tokens_to_expect_of_a_window(rate: float, num_draft_tokens: int, expected: float) -> None:
    assert expected_accepted(rate, num_draft_tokens) == pytest.approx(expected)

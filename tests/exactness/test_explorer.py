"""The explorer finds every branch with its exact probability, and sees decisions that share a number."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from specdec.sampling.laws import Draws
from specdec.sampling.noise import Stream
from tests.exactness.explorer import SharedNumber, explore


def test_law_of_two_dice_of_which_the_second_is_thrown_only_sometimes() -> None:
    def run(draws: Draws) -> int:
        first = draws.pick([1, 2, 3], 0, Stream.DRAFT)
        if draws.happens(first, 2, 1):
            return first + draws.pick(torch.tensor([0, 1, 3]), 2, Stream.RESIDUAL)
        return first

    assert explore(run) == {
        0: Fraction(1, 6),
        1: Fraction(2, 6) * Fraction(1, 2),
        2: Fraction(2, 6) * Fraction(1, 2) * Fraction(1, 4),
        3: Fraction(2, 6) * Fraction(1, 2) * Fraction(3, 4) + Fraction(3, 6) * Fraction(1, 4),
        4: Fraction(3, 6) * Fraction(3, 4),
    }


def test_chances_are_cut_at_one_and_what_cannot_be_is_not_explored() -> None:
    assert explore(lambda draws: draws.happens(5, 3, 0)) == {True: 1}
    assert explore(lambda draws: draws.happens(0, 3, 0)) == {False: 1}
    assert explore(lambda draws: draws.pick([0, 7, 0], 0, Stream.DRAFT)) == {1: 1}


def test_without_decisions_there_is_one_branch() -> None:
    assert explore(lambda _: "as ever") == {"as ever": 1}


def test_two_decisions_by_one_number_are_seen() -> None:
    def same_position(draws: Draws) -> int:
        return draws.pick([1, 1], 4, Stream.RESIDUAL) + draws.pick([1, 1], 4, Stream.RESIDUAL)

    def told_apart(draws: Draws) -> int:
        one = draws.pick([1, 1], 4, Stream.RESIDUAL) + draws.pick([1, 1], 4, Stream.RESIDUAL, nth=1)
        return one + draws.pick([1, 1], 5, Stream.RESIDUAL) + draws.happens(1, 2, 4)

    with pytest.raises(SharedNumber):
        explore(same_position)
    assert explore(told_apart)[0] == Fraction(1, 16)


def test_nothing_to_pick_from_is_an_error() -> None:
    with pytest.raises(AssertionError):
        explore(lambda draws: draws.pick([0, 0], 0, Stream.DRAFT))

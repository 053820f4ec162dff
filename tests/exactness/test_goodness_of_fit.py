"""The G-test says what it should: evenly spread p-values for the right law, tiny ones for a wrong law."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from scipy import stats

from tests.exactness.goodness_of_fit import Tokens, assert_follows, p_value

LAW: dict[Tokens, float] = {(token,): weight / 210 for token, weight in enumerate(range(1, 21))}


def counts(num_samples: int, law: dict[Tokens, float], seed: int) -> Counter[Tokens]:
    return Counter(random.Random(seed).choices(list(law), list(law.values()), k=num_samples))


def test_p_values_of_the_right_law_are_uniform() -> None:
    values = [p_value(counts(400, LAW, seed), LAW) for seed in range(400)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_a_wrong_law_is_seen() -> None:
    wrong: dict[Tokens, float] = {
        (token,): (probability + LAW[19 - token,]) / 2 for (token,), probability in LAW.items()
    }
    with pytest.raises(AssertionError, match="400 samples"):
        assert_follows(counts(400, wrong, 0), LAW, "wrong")


def test_a_single_impossible_outcome_is_enough() -> None:
    assert p_value(counts(400, LAW, 0) + Counter([(20,)]), LAW) == 0.0


def test_a_sure_outcome_fits() -> None:
    assert p_value({(1, 2): 400}, {(1, 2): 1.0}) == 1.0


def test_a_law_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="add up"):
        p_value({(0,): 5}, {(0,): 0.5})

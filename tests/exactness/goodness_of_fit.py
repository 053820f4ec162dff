"""Do counts follow a law? The G-test: twice the log-likelihood ratio against a chi-square distribution (Wilks)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from scipy import stats

FALSE_ALARM = 1e-6
"""Chance that a correct build would have failed any of the tests when their seeds were chosen. They are fixed since."""
MAX_NUM_TESTS = 50
"""Bound on the number of G-tests in this folder, for Bonferroni's correction."""
_SMALLEST_EXPECTATION = 5.0

Tokens = tuple[int, ...]


def p_value(counts: Mapping[Tokens, int], law: Mapping[Tokens, float]) -> float:
    """Chance of counts as far from the law as these, or farther; 0 if something impossible was counted.

    Rare outcomes are pooled until each pool expects at least 5, as the test's distribution needs.

    Args:
        counts: how often each outcome came; at least 5 in all.
        law: probability of each outcome that can come; they add up to 1.

    Raises:
        ValueError: they do not.
    """
    if not math.isclose(sum(law.values()), 1.0, abs_tol=1e-6):
        raise ValueError("the probabilities do not add up to 1")
    if any(outcome not in law for outcome in counts):
        return 0.0
    total = sum(counts.values())
    statistic = 0.0
    num_pools = 0
    expected, observed = 0.0, 0
    for outcome, probability in sorted(law.items(), key=lambda item: item[1]):
        expected += total * probability
        observed += counts.get(outcome, 0)
        if expected >= _SMALLEST_EXPECTATION:
            statistic += 2.0 * observed * math.log(observed / expected) if observed else 0.0
            num_pools += 1
            expected, observed = 0.0, 0
    return float(stats.chi2.sf(statistic, num_pools - 1)) if num_pools > 1 else 1.0


def assert_follows(counts: Counter[Tokens], law: Mapping[Tokens, float], what: str) -> None:
    """Fail unless the counts are likely under the law."""
    p = p_value(counts, law)
    assert p > FALSE_ALARM / MAX_NUM_TESTS, f"{what}: {sum(counts.values())} samples with p = {p:.2g}"

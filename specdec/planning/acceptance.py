"""How many tokens a round commits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Acceptance:
    """Conditional acceptance by position: the share of windows accepted up to before it that go on.

    Raises:
        ValueError: there are no rates, or one is no probability.
    """

    rates: tuple[float, ...]
    """Of position 1, 2, ...; positions beyond have the last one. One rate alone holds for all."""

    def __post_init__(self) -> None:
        if not self.rates:
            raise ValueError("acceptance needs at least one rate")
        if not all(0 <= rate <= 1 for rate in self.rates):
            raise ValueError("acceptance rates are between 0 and 1")

    @classmethod
    def from_mean_lengths(cls, mean_lengths: dict[int, float]) -> Acceptance:
        """The rates that give these mean acceptance lengths.

        Between two K that were measured the rate is taken as constant: the smallest K gives the rate of the positions
        up to it, the next one that of those between, and so on. Rates that fall with the position
        give the lengths exactly; with others larger K may be out of reach, and are met as nearly as can be.

        Args:
            mean_lengths: tokens a round, bonus counted, by K from 1 on.

        Raises:
            ValueError: there are none, or a length is below 1 or above K + 1.
        """
        rates: list[float] = []
        survival, tokens = 1.0, 1.0
        for k, length in sorted(mean_lengths.items()):
            if k < 1 or not 1 <= length <= k + 1:
                raise ValueError(f"a mean acceptance length is between 1 and K + 1, not {length:g} for K = {k}")
            count = k - len(rates)
            rate = _rate_of_sum(max(length - tokens, 0.0) / survival, count) if survival > 0 else 0.0
            rates += [rate] * count
            tokens += survival * sum(rate**position for position in range(1, count + 1))
            survival *= rate**count
        return cls(tuple(rates))

    def rate(self, position: int) -> float:
        """Conditional acceptance of a position, from 1."""
        return self.rates[min(position, len(self.rates)) - 1]

    def expected_tokens(self, num_draft_tokens: int) -> float:
        """E(K): tokens that a round commits on average, recovered or bonus token counted.

        `1 + a(1) + a(1) a(2) + ... + a(1) ... a(K)`; for one rate `a` this is `(1 - a^(K+1)) / (1 - a)`.
        """
        survival = tokens = 1.0
        for position in range(1, num_draft_tokens + 1):
            survival *= self.rate(position)
            tokens += survival
        return tokens


def _rate_of_sum(total: float, count: int) -> float:
    """The rate in [0, 1] whose first `count` powers add up to this, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**power for power in range(1, count + 1)) < total:
            low = middle
        else:
            high = middle
    return (low + high) / 2

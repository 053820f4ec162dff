"""Random decisions that fall in every possible way, each with its exact probability."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import TypeVar

import torch

from specdec.sampling.laws import Draws
from specdec.sampling.noise import Stream

Outcome = TypeVar("Outcome", bound=Hashable)


class SharedNumber(AssertionError):
    """Two decisions of one round would be made by the same random number."""


class Branch:
    """One way in which the decisions of a run fall: the first ones as told, the rest to their first possible result.

    `specdec.sampling.laws.CounterDraws` makes a decision by a number that depends on its stream, position and `nth`
    alone. Calling decisions independent, as is done here, is right only if no two of a round agree in all three, so
    that is checked too.

    Args:
        told: for each of the first decisions, which of its possible results to take.
    """

    def __init__(self, told: list[int]) -> None:
        self._told = told
        self._keys: set[tuple[Stream, int, int]] = set()
        self.taken: list[tuple[int, int]] = []
        """Of each decision made: which result it took, of how many possible ones."""
        self.probability = Fraction(1)

    def happens(self, numerator: int, denominator: int, position: int) -> bool:
        """See `Draws`."""
        chance = min(Fraction(1), Fraction(numerator, denominator))
        return self._decide((Stream.ACCEPT, position, 0), [(1, chance), (0, 1 - chance)]) == 1

    def pick(self, weights: torch.Tensor | list[int], position: int, stream: Stream, nth: int = 0) -> int:
        """See `Draws`."""
        plain: list[int] = weights.tolist() if isinstance(weights, torch.Tensor) else weights
        total = sum(plain)
        assert total > 0, "there is no weight to pick from"
        return self._decide(
            (stream, position, nth), [(index, Fraction(weight, total)) for index, weight in enumerate(plain)]
        )

    def _decide(self, key: tuple[Stream, int, int], results: list[tuple[int, Fraction]]) -> int:
        if key in self._keys:
            raise SharedNumber(f"two decisions use {key}")
        self._keys.add(key)
        assert all(chance >= 0 for _, chance in results)
        possible = [(result, chance) for result, chance in results if chance]
        depth = len(self.taken)
        index = self._told[depth] if depth < len(self._told) else 0
        self.taken.append((index, len(possible)))
        result, chance = possible[index]
        self.probability *= chance
        return result


def explore(run: Callable[[Draws], Outcome]) -> dict[Outcome, Fraction]:
    """The exact law of what `run` returns, found by running it once for every way its decisions can fall.

    Args:
        run: must decide by its argument alone.
    """
    law: defaultdict[Outcome, Fraction] = defaultdict(Fraction)
    told: list[int] = []
    while True:
        branch = Branch(told)
        outcome = run(branch)
        law[outcome] += branch.probability
        # Depth first: the last decision that has a further result takes it; those behind it start anew.
        taken = branch.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return dict(law)
        told = [index for index, _ in taken]
        told[-1] += 1

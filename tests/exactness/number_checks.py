"""Checks of the numbers that decisions are made by: what rounding and finite noise cost, against the bounds stated."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction

import torch

from specdec.sampling import noise
from specdec.sampling.laws import CounterDraws, TargetLaw
from specdec.sampling.noise import Stream
from tests.exactness.goodness_of_fit import assert_follows

_NUM_SEEDS = 3000
_ALL_BITS = 1 << 32


def check_counter_draws() -> None:
    """Decisions come as often as they should, and are independent over the rounds and streams of one position."""
    weights = [3, 0, 1, 4]
    law = [weight / 8 for weight in weights]
    picks, rounds, streams = (Counter[tuple[int, ...]]() for _ in range(3))
    for seed in range(_NUM_SEEDS):
        draws, later = CounterDraws(seed, 20), CounterDraws(seed, 21)
        drafted = draws.pick(weights, 25, Stream.DRAFT)
        happened = draws.happens(1, 4, 25)
        picks[draws.pick(torch.tensor(weights), 25, Stream.RESIDUAL),] += 1
        rounds[happened, later.happens(1, 4, 25)] += 1
        streams[drafted, happened] += 1
    picked: dict[tuple[int, ...], float] = {(index,): chance for index, chance in enumerate(law) if chance}
    assert_follows(picks, picked, "picks from a tensor")
    events = {True: 0.25, False: 0.75}
    assert_follows(
        rounds,
        {(one, other): first * second for one, first in events.items() for other, second in events.items()},
        "one position in two rounds",
    )
    assert_follows(
        streams,
        {(index, event): law[index] * chance for (index,) in picked for event, chance in events.items()},
        "picks from a list, and events at the same position",
    )


def check_law_rounding() -> None:
    """The target's integer law is within (tokens) * 2**-41 in total variation of the exact softmax of its logits."""
    for case in range(4):
        generator = torch.Generator().manual_seed(case)
        logits = torch.randn(2000, generator=generator) * (1.0, 3.0, 8.0, 20.0)[case]
        logits[::7] = -torch.inf
        law = TargetLaw.from_logits(logits, is_greedy=False)
        weights = law.weights_of(range(logits.numel()))
        with localcontext() as context:
            context.prec = 40
            powers = [
                Fraction(Decimal(value).exp()) if value > -torch.inf else Fraction(0) for value in logits.tolist()
            ]
        total = sum(powers)
        distance = sum(
            abs(Fraction(weight, law.total) - power / total) for weight, power in zip(weights, powers, strict=True)
        )
        assert not any(weights[::7]), "an excluded token has a weight"
        assert distance / 2 <= Fraction(logits.numel(), 2**41), f"case {case}: {float(distance / 2):.3g}"


def check_noise_resolution() -> None:
    """The noise of a token is above any threshold with Gumbel's probability, to 2**-32.

    It is a rising function of 32 bits, so those above a threshold are counted by bisection.
    """
    source = random.Random(0)
    starts = [0, _ALL_BITS - 1000, *(source.randrange(_ALL_BITS - 1000) for _ in range(50))]
    for start in starts:
        values = noise._gumbel_of_bits(torch.arange(start, start + 1000))
        if not bool((values[1:] >= values[:-1]).all()):
            raise ValueError("the noise does not rise with its bits, so it cannot be counted by bisection")
    thresholds = torch.linspace(-3.1, 22.0, 4000, dtype=torch.float64)
    low = torch.zeros(4000, dtype=torch.long)
    high = torch.full((4000,), _ALL_BITS)
    while bool((low < high).any()):
        middle = (low + high) // 2
        is_above = noise._gumbel_of_bits(middle) > thresholds
        high = torch.where(is_above, middle, high)
        low = torch.where(is_above | (low >= high), low, middle + 1)
    counted = (_ALL_BITS - low).double() / _ALL_BITS
    exact = -torch.expm1(-torch.exp(-thresholds))
    worst = float((counted - exact).abs().max())
    assert worst <= 2.0**-32, f"off by {worst:.3g}"

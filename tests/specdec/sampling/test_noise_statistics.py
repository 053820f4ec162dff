"""The noise looks random in every direction: over tokens, positions, seeds and streams, and between them.

All seeds are fixed, so no test fails by chance; FALSE_ALARM is how likely it was to fail for good noise when the seeds
were chosen. About 25 statistics are looked at.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy import stats

from specdec.sampling.noise import Stream, below, gumbel, gumbel_reference, noise_key

FALSE_ALARM = 1e-4
NUM_TOKENS, NUM_KEYS = 100_000, 10_000
GAMMA = 0x9E3779B97F4A7C15


def uniforms_of(noise: torch.Tensor) -> torch.Tensor:
    """The uniform numbers behind Gumbel noise."""
    return torch.exp(-torch.exp(-noise))


def uniforms(key: int, token_ids: torch.Tensor) -> torch.Tensor:
    return uniforms_of(gumbel(key, token_ids))


def one_token_under_many_keys(key_of: Callable[[int], int], token_id: int = 17) -> torch.Tensor:
    noise = torch.tensor([gumbel_reference(key_of(index), token_id) for index in range(NUM_KEYS)], dtype=torch.float64)
    return uniforms_of(noise)


def over_tokens() -> torch.Tensor:
    return uniforms(noise_key(3, 100, Stream.TARGET), torch.arange(NUM_TOKENS))


def over_positions() -> torch.Tensor:
    return one_token_under_many_keys(lambda index: noise_key(3, index, Stream.TARGET))


def over_seeds() -> torch.Tensor:
    return one_token_under_many_keys(lambda index: noise_key(index, 100, Stream.TARGET))


def over_spread_seeds() -> torch.Tensor:
    # Seeds a multiple of SplitMix64's own step apart are the hardest to tell apart for it.
    return one_token_under_many_keys(lambda index: noise_key((index * GAMMA) % 2**64, 100, Stream.TARGET))


def over_positions_of_another_stream() -> torch.Tensor:
    return one_token_under_many_keys(lambda index: noise_key(3, index, Stream.RESIDUAL))


SAMPLES = (over_tokens, over_positions, over_seeds, over_spread_seeds, over_positions_of_another_stream)


@pytest.mark.parametrize("sample", SAMPLES)
def test_uniform(sample: Callable[[], torch.Tensor]) -> None:
    values = sample()
    assert stats.kstest(values.numpy(), "uniform").pvalue > FALSE_ALARM
    counts = torch.histc(values, 64, 0.0, 1.0)
    assert stats.chisquare(counts.numpy()).pvalue > FALSE_ALARM


@pytest.mark.parametrize("sample", SAMPLES)
def test_neighbours_are_independent(sample: Callable[[], torch.Tensor]) -> None:
    values = sample()
    assert_independent(values[:-1], values[1:])


TOKENS = torch.arange(30_000)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((5, 7, Stream.TARGET), (5, 7, Stream.DRAFT)),
        ((5, 7, Stream.TARGET), (5, 7, Stream.ACCEPT)),
        ((5, 7, Stream.TARGET), (5, 7, Stream.RESIDUAL)),
        ((5, 7, Stream.DRAFT), (5, 7, Stream.RESIDUAL)),
        ((5, 7, Stream.RESIDUAL), (5, 8, Stream.TARGET)),
        ((5, 7, Stream.TARGET), (5, 8, Stream.TARGET)),
        ((5, 7, Stream.TARGET), (6, 7, Stream.TARGET)),
        ((5, 7, Stream.TARGET), (5 + 2**63, 7, Stream.TARGET)),
        ((0, 0, Stream.TARGET), (2**64 - 1, 0, Stream.TARGET)),
    ],
)
def test_keys_next_to_each_other_give_independent_noise(
    one: tuple[int, int, Stream], other: tuple[int, int, Stream]
) -> None:
    assert_independent(uniforms(noise_key(*one), TOKENS), uniforms(noise_key(*other), TOKENS))


def assert_independent(one: torch.Tensor, other: torch.Tensor) -> None:
    """No linear correlation, and a flat joint histogram."""
    assert stats.pearsonr(one.numpy(), other.numpy()).pvalue > FALSE_ALARM
    table = torch.zeros(8, 8).index_put_(
        ((one * 8).long().clamp(max=7), (other * 8).long().clamp(max=7)), torch.tensor(1.0), accumulate=True
    )
    assert stats.chisquare(table.flatten().numpy()).pvalue > FALSE_ALARM


@pytest.mark.parametrize("what", ["position", "base_length", "nth", "seed"])
def test_decisions_are_uniform_and_independent_along_each_argument(what: str) -> None:
    bound = 10
    arguments = {"seed": 1, "position": 50, "base_length": 50, "nth": 0}
    start = arguments[what]
    drawn = [below(bound, stream=Stream.ACCEPT, **{**arguments, what: start + index}) for index in range(10_000)]
    counts = torch.bincount(torch.tensor(drawn), minlength=bound)
    assert stats.chisquare(counts.numpy()).pvalue > FALSE_ALARM
    pairs = torch.bincount(torch.tensor(drawn[:-1]) * bound + torch.tensor(drawn[1:]), minlength=bound**2)
    assert stats.chisquare(pairs.numpy()).pvalue > FALSE_ALARM


def test_a_large_bound_is_met_by_its_high_part() -> None:
    bound = 3 << 80
    thirds = [below(bound, 9, position, Stream.RESIDUAL, 4) * 3 // bound for position in range(9_000)]
    assert stats.chisquare([thirds.count(third) for third in range(3)]).pvalue > FALSE_ALARM

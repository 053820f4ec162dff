"""The shortcut gives what looking at every token gives, and tokens come by the law of the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats

from specdec.sampling.noise import (
    MAX_GUMBEL,
    Stream,
    first_highest,
    first_highest_of_rows,
    first_highest_on_device,
    gumbel,
    gumbel_argmax,
    gumbel_argmax_of_rows,
    gumbel_reference,
    noise_key,
    noise_keys,
    plain_argmax_of_rows,
    seed_key,
)

WIDE = 49_152
FALSE_ALARM = 1e-4


Draw = Callable[[torch.Tensor, int], int | None]


def signed(key: int) -> torch.Tensor:
    return torch.tensor([key - (key >> 63 << 64)])


def plainly(logits: torch.Tensor, key: int) -> int | None:
    (token,) = plain_argmax_of_rows(logits[None], signed(key))
    return token


WAYS = pytest.mark.parametrize("draw", [gumbel_argmax, plainly], ids=["compiled", "plain"])


def argmax_of_all(logits: torch.Tensor, key: int) -> int:
    return int((logits.double() + gumbel(key, torch.arange(logits.numel()))).argmax())


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flat(seed: int) -> torch.Tensor:
    return torch.zeros(WIDE)


def spread(seed: int) -> torch.Tensor:
    return torch.randn(WIDE, generator=generator(seed)) * 3


def peaked(seed: int) -> torch.Tensor:
    logits = torch.randn(WIDE, generator=generator(seed))
    logits[seed * 37 % WIDE] += 12
    return logits


def certain(seed: int) -> torch.Tensor:
    logits = torch.full((WIDE,), -100.0)
    logits[seed] = 100.0
    return logits


def masked(seed: int) -> torch.Tensor:
    logits = spread(seed)
    return logits.masked_fill(torch.rand(WIDE, generator=generator(seed + 1)) < 0.99, -torch.inf)


def one_left(seed: int) -> torch.Tensor:
    logits = torch.full((WIDE,), -torch.inf)
    logits[seed] = -50.0
    return logits


def tied(seed: int) -> torch.Tensor:
    return torch.randint(3, (WIDE,), generator=generator(seed)).float()


def tiny(seed: int) -> torch.Tensor:
    return torch.randn(WIDE, generator=generator(seed)) * 1e-30


def large(seed: int) -> torch.Tensor:
    # As temperature 1e-5 makes them: steps of float32 wider than the noise.
    return 3e7 + torch.randint(4, (WIDE,), generator=generator(seed)).float() * 2


def at_the_edge(seed: int) -> torch.Tensor:
    # Half of the tokens lie where only the very largest noise could bring them up.
    logits = torch.zeros(WIDE)
    logits[::2] -= MAX_GUMBEL + 10
    return logits


@WAYS
@pytest.mark.parametrize(
    "make",
    [flat, spread, peaked, certain, masked, one_left, tied, tiny, large, at_the_edge],
    ids=lambda make: make.__name__,
)
def test_shortcut_equals_the_full_computation(make: Callable[[int], torch.Tensor], draw: Draw) -> None:
    for seed in range(15):
        logits = make(seed)
        key = noise_key(seed, seed + 11, Stream.TARGET)
        assert draw(logits, key) == argmax_of_all(logits, key)


@WAYS
def test_shortcut_equals_the_full_computation_over_many_keys(draw: Draw) -> None:
    for index in range(1_500):
        logits = torch.randn(50, generator=generator(index)) * (index % 7)
        if index % 2:
            logits += 3e7  # ties in float32, that the noise decides
        key = noise_key(1, index, Stream.TARGET)
        assert draw(logits, key) == argmax_of_all(logits, key)


@WAYS
def test_scores_closer_than_float32_can_tell_are_decided_exactly(draw: Draw) -> None:
    for position in range(200):
        key = noise_key(2, position, Stream.TARGET)
        noise = gumbel(key, torch.arange(2))
        logits = torch.tensor([0.0, float(noise[0] - noise[1])])
        assert abs(float(logits[1] + noise[1] - noise[0])) < 1e-6
        assert draw(logits, key) == argmax_of_all(logits, key)


@WAYS
def test_the_least_likely_winner_is_found(draw: Draw) -> None:
    # Search for a token with noise far out, and put its logit so low that only that noise makes it win.
    key = noise_key(0, 0, Stream.TARGET)
    noise = gumbel(key, torch.arange(4_000_000))
    token = int(noise.argmax())
    assert noise[token] > 13
    logits = torch.full((token + 2,), -torch.inf)
    favourite = token + 1
    margin = float(noise[token]) - gumbel_reference(key, favourite)
    logits[favourite] = 0.0
    logits[token] = -(margin - 1e-3)
    assert draw(logits, key) == token
    logits[token] = -(margin + 1e-3)
    assert draw(logits, key) == favourite


@pytest.mark.parametrize(
    "weights",
    [[1.0] * 8, [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125], [0.9, 0.02, 0.02, 0.02, 0.02, 0.02], [0.7, 0.0, 0.3]],
)
def test_tokens_come_by_the_law_of_the_softmax(weights: list[float]) -> None:
    law = torch.tensor(weights) / sum(weights)
    logits = law.log() + 5.0
    count = 3_000
    drawn = torch.tensor([gumbel_argmax(logits, noise_key(11, position, Stream.TARGET)) for position in range(count)])
    observed = torch.bincount(drawn, minlength=len(weights))
    assert bool((observed[law == 0] == 0).all())
    kept = law > 0
    expected = law[kept].double() / law[kept].double().sum() * count
    result = stats.power_divergence(observed[kept].numpy(), expected.numpy(), lambda_="log-likelihood")
    assert result.pvalue > FALSE_ALARM


def test_the_law_holds_over_seeds_and_tokens_high_up_too() -> None:
    logits = torch.full((WIDE,), -torch.inf)
    logits[[5, 20_000, WIDE - 1]] = torch.tensor([0.2, 0.3, 0.5]).log()
    drawn = [gumbel_argmax(logits, noise_key(seed, 40, Stream.TARGET)) for seed in range(2_000)]
    observed = [drawn.count(token) for token in (5, 20_000, WIDE - 1)]
    result = stats.power_divergence(observed, [400.0, 600.0, 1000.0], lambda_="log-likelihood")
    assert result.pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1.0, 3.0, 3.0, 2.0], 1),
        ([-math.inf, -math.inf, -5.0], 2),
        ([-math.inf, -math.inf], 0),
        ([1.0, math.inf, math.inf], 1),
        ([1.0, math.nan, 5.0], 1),
    ],
)
def test_the_first_of_the_highest_is_found(numbers: list[float], expected: int) -> None:
    row = torch.tensor([[0.0] * len(numbers), numbers])[1]
    index, value = first_highest(row)
    assert index == expected
    assert value == pytest.approx(numbers[expected], abs=0, nan_ok=True)
    for look in (first_highest_of_rows, first_highest_on_device):
        (_, index), (zero, value) = look(torch.tensor([[0.0] * len(numbers), numbers]))
        assert (zero, index) == (0.0, expected)
        assert value == pytest.approx(numbers[expected], abs=0, nan_ok=True)


def test_the_highest_of_many_rows_are_those_of_each() -> None:
    # Rows of a padded vocabulary do not lie side by side.
    rows = torch.randn(7, 4_000, generator=torch.Generator().manual_seed(5))[:, :3_000]
    for look in (first_highest_of_rows, first_highest_on_device):
        indices, values = look(rows)
        assert list(zip(indices, values, strict=True)) == [first_highest(row) for row in rows]
        assert look(rows[:0]) == ([], [])


@pytest.mark.parametrize("argmax", [gumbel_argmax_of_rows, plain_argmax_of_rows])
def test_rows_are_drawn_from_each_by_itself(argmax: Callable[[torch.Tensor, torch.Tensor], list[int | None]]) -> None:
    makers = (flat, spread, peaked, masked, one_left, large)
    rows = torch.stack([make(seed) for seed, make in enumerate(makers)])
    rows = torch.cat([rows, torch.full((1, WIDE), -math.inf), rows[:2], rows[:1]])
    rows[-1, 7], rows[-2, 9] = math.nan, math.inf
    keys = noise_keys([seed_key(2**64 - 1 - seed) for seed in range(10)], range(40, 50), Stream.TARGET)
    single = [noise_key(2**64 - 1 - seed, 40 + seed, Stream.TARGET) for seed in range(10)]
    assert [key % 2**64 for key in keys.tolist()] == single
    expected: list[int | None] = [argmax_of_all(row, key) for row, key in zip(rows[:6], single, strict=False)]
    expected.append(None)
    expected.append(argmax_of_all(rows[7], single[7]))
    assert argmax(rows, keys) == [*expected, None, None]
    # Rows of a padded vocabulary do not lie side by side.
    assert argmax(rows[:, : WIDE // 2], keys)[1] == argmax_of_all(rows[1, : WIDE // 2], single[1])
    assert argmax(rows[:0], keys[:0]) == []


def test_without_a_highest_nothing_is_drawn() -> None:
    with pytest.raises(ValueError, match="no number"):
        gumbel_argmax(torch.full((5,), -math.inf), 3)


def test_noise_that_is_lost_in_large_logits_leaves_the_first_of_them() -> None:
    logits = torch.tensor([-1e30, 1e30, 1e30, 1e30])
    for position in range(50):
        key = noise_key(3, position, Stream.TARGET)
        assert gumbel_argmax(logits, key) == argmax_of_all(logits, key) == 1


def test_without_the_compiled_kernel_tokens_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.stack([spread(seed) for seed in range(4)])
    keys = noise_keys([seed_key(5)] * 4, range(4), Stream.TARGET)
    expected = gumbel_argmax_of_rows(rows, keys)
    seen = []

    def count(logits: torch.Tensor, of_rows: torch.Tensor) -> list[int | None]:
        seen.append(len(logits))
        return plain_argmax_of_rows(logits, of_rows)

    monkeypatch.setattr("specdec.sampling.noise.plain_argmax_of_rows", count)
    assert gumbel_argmax_of_rows(rows, keys) == expected
    assert seen == []
    monkeypatch.setattr("specdec.sampling.noise.drawing_kernels", lambda: None)
    assert gumbel_argmax_of_rows(rows, keys) == expected
    assert seen == [4]

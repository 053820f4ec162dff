"""The noise is the same to the last bit however it is computed, and it is what its description says."""

from __future__ import annotations

import math
import random
from decimal import Decimal, localcontext

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from specdec.sampling.noise import (
    MAX_GUMBEL,
    Stream,
    _gumbel_of_bits,
    _log,
    below,
    gumbel,
    gumbel_argmax,
    gumbel_reference,
    log_reference,
    mix64,
    noise_key,
)

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
KEYS = st.integers(0, MASK)
EDGE_TOKENS = [0, 1, 2, 31, 32, 49_151, 151_935, 2**24 - 1, 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 1]


def exact_gumbel(key: int, token_id: int) -> Decimal:
    """The noise from its description alone, with integers and 40 digits."""
    value = (key + (token_id + 1) * GAMMA) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    value ^= value >> 31
    with localcontext() as context:
        context.prec = 40
        u = (Decimal(value >> 32) + Decimal("0.5")) / 2**32
        return -(-u.ln()).ln()


def test_mix64_is_splitmix64() -> None:
    # The published test vector of SplitMix64, seed 1234567.
    outputs = [mix64((1234567 + count * GAMMA) & MASK) for count in range(1, 6)]
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize(
    ("seed", "position", "stream", "key"),
    [
        (0, 0, Stream.TARGET, 0xA706DD2F4D197E6F),
        (1, 0, Stream.TARGET, 0x5E41AB087439611E),
        (2**64 - 1, 4095, Stream.RESIDUAL, 0xAE58790756FBEB40),
    ],
)
def test_golden_keys(seed: int, position: int, stream: Stream, key: int) -> None:
    # Draft and target may run different releases; a change of the key is a change of the protocol.
    assert noise_key(seed, position, stream) == key


@pytest.mark.parametrize(
    ("key", "token_id", "value"),
    [
        (0, 0, "0x1.0b1db1904e8a5p+1"),
        (MASK, 49_151, "0x1.02dde803871a4p+0"),
        (0x0123456789ABCDEF, 2**31, "0x1.5c55757342bc9p-3"),
    ],
)
def test_golden_noise(key: int, token_id: int, value: str) -> None:
    found = gumbel_reference(key, token_id)
    assert found.hex() == value
    assert float(abs(Decimal(found) - exact_gumbel(key, token_id))) < 1e-10


@given(KEYS, st.lists(st.integers(0, 2**31), min_size=1, max_size=64))
def test_tensors_and_plain_python_agree_bit_for_bit(key: int, token_ids: list[int]) -> None:
    token_ids = [*token_ids, *EDGE_TOKENS]
    found = gumbel(key, torch.tensor(token_ids))
    assert found.dtype == torch.float64
    assert found.tolist() == [gumbel_reference(key, token_id) for token_id in token_ids]


def test_tensors_and_plain_python_agree_over_many_tokens() -> None:
    for key in (0, 1, 1 << 63, MASK, noise_key(7, 11, Stream.TARGET)):
        token_ids = torch.arange(20_000)
        assert gumbel(key, token_ids).tolist() == [gumbel_reference(key, token_id) for token_id in range(20_000)]


def test_shape_is_kept_and_values_do_not_depend_on_their_neighbours() -> None:
    token_ids = torch.randint(2**31, (3, 5, 7), generator=torch.Generator().manual_seed(0))
    found = gumbel(99, token_ids)
    assert found.shape == (3, 5, 7)
    assert found[2, 1, 3] == gumbel(99, token_ids[2, 1, 3])
    assert found.transpose(0, 2).tolist() == gumbel(99, token_ids.transpose(0, 2)).tolist()


@given(KEYS, st.integers(0, 2**31))
def test_noise_is_close_to_its_exact_value(key: int, token_id: int) -> None:
    assert float(abs(Decimal(gumbel_reference(key, token_id)) - exact_gumbel(key, token_id))) < 1e-10


@given(st.floats(2.0**-60, 2.0**60))
def test_logarithm_is_right_to_eleven_digits_and_the_same_twice(x: float) -> None:
    assert log_reference(x) == pytest.approx(math.log(x), rel=1e-11, abs=1e-300)
    assert float(_log(torch.tensor([x], dtype=torch.float64))) == log_reference(x)


def critical_bits() -> torch.Tensor:
    """All patterns at both ends, where the noise is steep, and a grid that gets coarser towards the middle; sorted."""
    end = torch.arange(1 << 14)
    steps = torch.logspace(14, 31, 60_000, base=2.0, dtype=torch.float64).long()
    low = torch.cat([end, steps])
    return torch.cat([low, (1 << 32) - 1 - low]).sort().values


def test_noise_never_falls_where_its_bits_rise() -> None:
    # Who has fewer bits than another is left out for having less noise.
    assert bool((_gumbel_of_bits(critical_bits()).diff() >= 0).all())


def test_max_gumbel_is_the_largest_noise_there_is() -> None:
    values = _gumbel_of_bits(critical_bits())
    assert float(values[-1]) == MAX_GUMBEL == float(values.max())
    assert pytest.approx(33 * math.log(2)) == MAX_GUMBEL
    assert float(values[0]) == pytest.approx(-math.log(33 * math.log(2)))


def test_streams_positions_and_seeds_have_keys_of_their_own() -> None:
    keys = {
        noise_key(seed, position, stream)
        for seed in (0, 1, 2, 2**32, 2**63, MASK)
        for position in range(500)
        for stream in Stream
    }
    assert len(keys) == 6 * 500 * len(Stream)


@given(st.integers(1, 2**90), KEYS, st.integers(0, 2**20), st.sampled_from(Stream), st.integers(0, 2**20))
def test_below_stays_below(bound: int, seed: int, position: int, stream: Stream, base_length: int) -> None:
    assert 0 <= below(bound, seed, position, stream, base_length) < bound


def test_below_depends_on_everything_it_is_given() -> None:
    asked = random.Random(0)
    cases = set()
    for _ in range(50):
        case = (asked.getrandbits(64), asked.randrange(4096), asked.choice(list(Stream)), asked.randrange(4096))
        seed, position, stream, base_length = case
        cases |= {
            (seed, position, stream, base_length, 0),
            (seed ^ 1, position, stream, base_length, 0),
            (seed, position + 1, stream, base_length, 0),
            (seed, position, Stream((stream + 1) % len(Stream)), base_length, 0),
            (seed, position, stream, base_length + 1, 0),
            (seed, position, stream, base_length, 1),
        }
    assert len({below(2**64, *case) for case in cases}) == len(cases) == 300


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_bits_and_the_same_tokens() -> None:
    token_ids = torch.cat([torch.arange(200_000), torch.tensor(EDGE_TOKENS)])
    for key in (0, MASK, noise_key(7, 11, Stream.TARGET)):
        assert torch.equal(gumbel(key, token_ids.cuda()).cpu(), gumbel(key, token_ids))
        logits = torch.randn(49_152, generator=torch.Generator().manual_seed(key % 1000)) * 3
        assert gumbel_argmax(logits.cuda(), key) == gumbel_argmax(logits, key)

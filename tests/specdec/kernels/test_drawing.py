"""The compiled draw has the noise of `specdec.sampling.noise` to the last bit, and leaves out none that could win."""

from __future__ import annotations

import math
import random

import numpy as np

from specdec.kernels import drawing
from specdec.sampling.noise import GAMMA, MAX_GUMBEL, Stream, gumbel_reference, mix64, noise_key

_MASK = 2**64 - 1


def noise_of_bits(bits: int) -> float:
    return float(drawing._noise(np.uint64(bits)))


def test_noise_is_that_of_the_reference() -> None:
    rng = random.Random(1)
    for _ in range(2_000):
        key, token = noise_key(rng.randrange(2**64), rng.randrange(2**20), Stream.TARGET), rng.randrange(2**18)
        bits = drawing._bits(np.uint64((key + GAMMA) & _MASK), np.uint64(token))
        assert int(bits) == mix64((key + (token + 1) * GAMMA) & _MASK) >> 32
        assert noise_of_bits(int(bits)) == gumbel_reference(key, token)


def test_whoever_has_fewer_bits_has_less_noise() -> None:
    steps = len(drawing.FEWEST_BITS) - 1
    for step, fewest in enumerate(drawing.FEWEST_BITS[:-1].tolist()):
        noise = drawing._LEAST + step / drawing._STEPS
        if fewest:
            assert noise_of_bits(fewest - 1) < noise
        # And nearly none that could be left out passes.
        assert fewest + 4 >= 2**32 or noise_of_bits(fewest + 4) >= noise or noise < -3.0
    assert noise_of_bits(0) > drawing._LEAST
    assert noise_of_bits(2**32 - 1) == MAX_GUMBEL < drawing._LEAST + (steps - 1) / drawing._STEPS + 1 / drawing._STEPS
    assert int(drawing.FEWEST_BITS[-1]) == 2**32, "nothing passes"
    assert int((drawing._MOST - drawing._LEAST) * drawing._STEPS) == steps


def test_rows_without_a_favourite_are_left_out() -> None:
    chosen = np.full(2, 77)
    logits = np.zeros((2, 5), np.float32)
    logits[1, 3] = math.inf
    keys, favourites = np.arange(2, dtype=np.uint64), np.array([2, -1])
    drawing.draw(logits, keys, favourites, drawing.FEWEST_BITS, chosen)
    assert 0 <= chosen[0] < 5
    assert chosen[1] == -1

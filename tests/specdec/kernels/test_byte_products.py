"""Products with packed weights against the same arithmetic written out in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec.kernels.available import byte_kernels

kernels: Any = byte_kernels()
if kernels is None:
    pytest.skip("this processor has no dot products of bytes", allow_module_level=True)

OUT_FEATURES, IN_FEATURES, GROUP = 48, 96, 32
GROUPS = IN_FEATURES // GROUP


def packed(bits: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels, scale and least value of some weights; the latter numbers of float16."""
    random = np.random.default_rng(seed)
    levels = random.integers(0, 2**bits, (OUT_FEATURES, IN_FEATURES)).astype(np.uint8)
    scale, least = random.normal(size=(2, OUT_FEATURES, GROUPS)).astype(np.float16).astype(np.float32)
    return levels, scale, least


def multiplied(rows: np.ndarray, bits: int) -> np.ndarray:
    levels, scale, least = packed(bits)
    out = np.full((len(rows), OUT_FEATURES), np.nan, np.float32)
    kernels.multiply(rows.astype(np.float32), *kernels.pack(levels, scale, least, bits), out)
    return out


def written_out(rows: np.ndarray, bits: int) -> np.ndarray:
    levels, scale, least = packed(bits)
    groups = rows.astype(np.float64).reshape(len(rows), GROUPS, GROUP)
    largest = np.abs(groups).max(-1)
    factors = np.divide(127, largest, out=np.zeros_like(largest), where=largest > 0)
    rounded = np.rint(groups * factors[..., None])
    products = np.einsum("ngk,rgk->rng", levels.reshape(OUT_FEATURES, GROUPS, GROUP).astype(np.float64), rounded)
    summed: np.ndarray = (scale * products * (largest / 127)[:, None] + least * groups.sum(-1)[:, None]).sum(-1)
    return summed


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_rows", range(1, 10))
def test_products_are_those_of_the_formula(bits: int, num_rows: int) -> None:
    rows = np.random.default_rng(1).normal(size=(num_rows, IN_FEATURES)).astype(np.float32)
    expected = written_out(rows, bits)
    np.testing.assert_allclose(multiplied(rows, bits), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_numbers_that_there_are(bits: int) -> None:
    """255 * 127, four of them in a lane, 8 times: nothing is cut off on the way."""
    levels = np.full((OUT_FEATURES, IN_FEATURES), 2**bits - 1, np.uint8)
    ones, zeros = np.ones((OUT_FEATURES, GROUPS), np.float32), np.zeros((OUT_FEATURES, GROUPS), np.float32)
    out = np.empty((2, OUT_FEATURES), np.float32)
    rows = np.stack([np.ones(IN_FEATURES), -np.ones(IN_FEATURES)]).astype(np.float32)
    kernels.multiply(rows, *kernels.pack(levels, ones, zeros, bits), out)
    total = IN_FEATURES * (2**bits - 1)
    np.testing.assert_allclose(out, np.repeat([[total], [-total]], OUT_FEATURES, 1), rtol=1e-6)


def test_a_row_does_not_depend_on_others() -> None:
    """Rows are rounded one by one, and a turn of four sums as a turn of one does."""
    rows = np.random.default_rng(2).normal(size=(7, IN_FEATURES)) * np.logspace(-3, 3, 7)[:, None]
    together = multiplied(rows, 4)
    for place, row in enumerate(rows):
        np.testing.assert_array_equal(multiplied(row[None], 4)[0], together[place])


def test_a_group_of_zeros_gives_zero() -> None:
    rows = np.zeros((1, IN_FEATURES))
    np.testing.assert_array_equal(multiplied(rows, 4), np.zeros((1, OUT_FEATURES)))
    rows[0, GROUP:] = 1
    np.testing.assert_allclose(multiplied(rows, 4), written_out(rows, 4), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_none(broken: float) -> None:
    rows = np.ones((5, IN_FEATURES))
    rows[2, 40] = broken
    is_finite = np.isfinite(multiplied(rows, 8))
    assert not is_finite[2].any()
    assert is_finite[[0, 1, 3, 4]].all()

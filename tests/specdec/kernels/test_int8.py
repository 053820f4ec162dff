"""Weights of 8 bits: how far their products are from the ones of float32, and which sizes there are."""

from __future__ import annotations

import pytest
import torch

from specdec.kernels.int8 import Int8Linear, fits_int8, has_int8


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_rows", [0, 1, 3, 40])
@pytest.mark.parametrize(("out_features", "in_features"), [(5, 16), (33, 80), (128, 96)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_near(num_rows: int, out_features: int, in_features: int, has_bias: bool) -> None:
    # Rows of weights of very different size: each has a scale of its own.
    weight = numbers(out_features, in_features) * torch.logspace(-3, 3, out_features)[:, None]
    bias = numbers(out_features, seed=1) if has_bias else None
    rows = numbers(2, num_rows, in_features, seed=2)
    found = Int8Linear(weight, bias)(rows)
    expected = torch.nn.functional.linear(rows, weight, bias)
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    sizes = rows.norm(dim=-1, keepdim=True) * weight.norm(dim=-1)
    assert bool(((found - expected).abs() <= 0.01 * sizes + 0.01 * expected.abs()).all())


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    layer, rows = Int8Linear(numbers(32, 48), None), numbers(6, 48, seed=1)
    together = layer(rows * torch.logspace(-2, 4, 6)[:, None])
    alone = torch.cat([layer(row[None]) for row in rows * torch.logspace(-2, 4, 6)[:, None]])
    torch.testing.assert_close(together, alone, rtol=1e-2, atol=0)


def test_weights_of_8_bits_are_kept() -> None:
    levels = torch.randint(-127, 128, (4, 32), generator=torch.Generator().manual_seed(0)).float()
    levels[:, 0] = 127
    found = Int8Linear(levels * 0.25, None)(torch.eye(32))
    assert torch.equal(found.t(), (levels * 0.25).bfloat16().float())


def test_zeros_stay() -> None:
    assert not Int8Linear(torch.zeros(3, 16), None)(numbers(2, 16)).any()


@pytest.mark.parametrize("in_features", [1, 8, 40, 85])
def test_sizes_that_the_operator_would_read_beyond_are_refused(in_features: int) -> None:
    assert not fits_int8(torch.zeros(4, in_features))
    with pytest.raises(ValueError, match="multiple of 16"):
        Int8Linear(torch.zeros(4, in_features), None)


def test_it_is_for_cpus() -> None:
    assert has_int8(torch.device("cpu"))
    assert not has_int8(torch.device("cuda"))

"""Linear layers on packed weights, against the same in float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from specdec.kernels.available import byte_kernels
from specdec.kernels.byte_linear import byte_linear

kernels = byte_kernels()
if kernels is None:
    pytest.skip("this processor has no dot products of bytes", allow_module_level=True)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def of_4_bits() -> torch.Tensor:
    levels = torch.randint(0, 16, (64, 96), generator=torch.Generator().manual_seed(0)).float()
    levels[:, ::32], levels[:, 1::32] = 0, 15
    return levels * 0.25 - 2


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("weight", "bits"), [(of_4_bits(), 4), (random(64, 96), 8)], ids=["4 bits", "8 bits"])
def test_products_are_nearly_those_of_float32(weight: torch.Tensor, bits: int, with_bias: bool) -> None:
    bias = random(64, seed=1) if with_bias else None
    layer = byte_linear(weight, bias)
    assert layer is not None
    assert layer.bits == bits
    rows = random(2, 3, 96, seed=2)
    expected = functional.linear(rows, weight, bias)
    found = layer(rows)
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    assert float((found - expected).norm() / expected.norm()) < 0.02
    assert layer(rows[:0]).shape == (0, 3, 64)


def test_weights_of_4_bits_are_kept_as_they_were() -> None:
    """A row of one number has nothing to be rounded, and picks out a column of the weights."""
    weight = of_4_bits()
    layer = byte_linear(weight, None)
    assert layer is not None
    torch.testing.assert_close(layer(torch.eye(96)), weight.t(), rtol=1e-6, atol=1e-6)


def test_of_8_bits_a_group_keeps_half_a_step() -> None:
    weight = random(64, 96)
    weight[:, 32:64] *= 1000  # which costs other groups nothing
    layer = byte_linear(weight, None)
    assert layer is not None
    difference = (layer(torch.eye(96)).t() - weight).abs().view(64, 3, 32)
    low, high = weight.view(64, 3, 32).aminmax(dim=-1)
    assert bool((difference <= 0.52 * (high - low)[..., None] / 255).all())


@pytest.mark.parametrize("shape", [(64, 80), (60, 96)], ids=["groups", "lanes"])
def test_sizes_that_do_not_fit(shape: tuple[int, int]) -> None:
    assert byte_linear(random(*shape), None) is None


@pytest.mark.parametrize("factor", [1e6, 1e-8, float("nan")])
def test_numbers_that_float16_does_not_hold(factor: float) -> None:
    assert byte_linear(random(64, 96) * factor, None) is None


def test_a_weight_of_zeros() -> None:
    layer = byte_linear(torch.zeros(64, 96), None)
    assert layer is not None
    assert not layer(random(2, 96)).any()


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.kernels.byte_linear.byte_kernels", lambda: None)
    assert byte_linear(random(64, 96), None) is None

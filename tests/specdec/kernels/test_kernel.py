"""Every kernel is a matrix product, for any number of rows."""

from __future__ import annotations

import pytest
import torch

from specdec.kernels.kernel import (
    KERNEL_NAMES,
    KernelName,
    arrange,
    arranged_bytes,
    available_kernels,
    layout_of,
    make_kernel,
)

SHAPES = [(64, 48), (576, 192), (37, 33), (1, 70), (250, 1)]
ROWS = (1, 2, 3, 4, 5, 8, 31, 32, 33, 64, 97)
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.02}
"""Relative to the largest value."""


def weight_of(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", KERNEL_NAMES)
@torch.inference_mode()
def test_product(name: KernelName, shape: tuple[int, int], dtype: torch.dtype, with_bias: bool) -> None:
    if name not in available_kernels(shape, dtype):
        # On the machines that tests run on, nothing else may be missing.
        assert name == "batched"
        assert shape[0] in (37, 1)
        return
    weight = weight_of(shape, dtype)
    bias = weight_of((1, shape[0]), dtype)[0] if with_bias else None
    kernel = make_kernel(name, arrange(weight, layout_of(name)), bias)
    for count in ROWS:
        rows = torch.randn(count, shape[1], generator=torch.Generator().manual_seed(count)).to(dtype)
        expected = rows.double() @ weight.double().t() + (0 if bias is None else bias.double())
        found = kernel(rows)
        assert found.shape == (count, shape[0])
        assert found.dtype == dtype
        assert found.is_contiguous()
        assert float((found.double() - expected).abs().max() / expected.abs().max()) < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_packed_sums_in_one_order(shape: tuple[int, int], dtype: torch.dtype) -> None:
    kernel = make_kernel("packed", arrange(weight_of(shape, dtype), "packed"), None)
    rows = torch.randn(max(ROWS), shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = kernel(rows)
    for count in ROWS:
        assert torch.equal(kernel(rows[:count]), whole[:count])
        assert torch.equal(kernel(rows[-count:]), whole[-count:])


def test_other_types_are_left_to_pytorch() -> None:
    assert available_kernels((64, 64), torch.float16) == ("default",)


def test_operators_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    assert available_kernels((64, 64), torch.float32) == ("default", "transposed", "batched")


def test_memory_of_a_layout() -> None:
    weight = weight_of((128, 64), torch.float32)
    assert arranged_bytes(arrange(weight, "plain")) == 128 * 64 * 4
    assert arrange(weight, "plain").data_ptr() == weight.data_ptr()
    for layout in ("packed", "convolution"):
        assert arranged_bytes(arrange(weight, layout)) == pytest.approx(128 * 64 * 4, rel=0.2)

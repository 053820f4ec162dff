"""Every kernel is a matrix product, for any number of rows."""

from __future__ import annotations

import pytest
import torch

from specdec.kernels.kernel import (
    KERNEL_NAMES,
    LAYOUTS,
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
        if name == "tiled":
            assert dtype == torch.bfloat16 or shape[0] % 64
        else:
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


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        *(("packed", shape, dtype) for shape in SHAPES for dtype in TOLERANCES),
        *(("tiled", shape, torch.float32) for shape in SHAPES[:2]),
    ],
)
@torch.inference_mode()
def test_some_sum_in_one_order(name: KernelName, shape: tuple[int, int], dtype: torch.dtype) -> None:
    kernel = make_kernel(name, arrange(weight_of(shape, dtype), layout_of(name)), None)
    rows = torch.randn(max(ROWS), shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = kernel(rows)
    for count in ROWS:
        assert torch.equal(kernel(rows[:count]), whole[:count])
        assert torch.equal(kernel(rows[-count:]), whole[-count:])


@torch.inference_mode()
def test_what_is_no_number_stays_in_its_row() -> None:
    """Rows that fill a turn up are zeros, and sums of one row are not those of another."""
    kernel = make_kernel("tiled", arrange(weight_of(SHAPES[0], torch.float32), "tiled"), None)
    rows = torch.ones(3, SHAPES[0][1])
    rows[1, 7] = torch.nan
    found = kernel(rows)
    assert bool(found[1].isnan().all())
    assert bool(found[[0, 2]].isfinite().all())


def test_other_types_are_left_to_pytorch() -> None:
    assert available_kernels((64, 64), torch.float16) == ("default",)


def test_operators_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    monkeypatch.setattr("specdec.kernels.kernel.tiled_kernels", lambda: None)
    assert available_kernels((64, 64), torch.float32) == ("default", "transposed", "batched")


def test_memory_of_a_layout() -> None:
    weight = weight_of((128, 64), torch.float32)
    assert arranged_bytes(arrange(weight, "plain")) == 128 * 64 * 4
    assert arrange(weight, "plain").data_ptr() == weight.data_ptr()
    for layout in LAYOUTS[1:]:
        assert arranged_bytes(arrange(weight, layout)) == pytest.approx(128 * 64 * 4, rel=0.2)

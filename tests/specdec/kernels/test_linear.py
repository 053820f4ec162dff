"""A layer takes the kernel of its number of rows, and holds no more than its kernels need."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from specdec.kernels import linear
from specdec.kernels.choosing import DEFAULT, always
from specdec.kernels.kernel import KERNEL_NAMES, Kernel, KernelName
from specdec.kernels.linear import ROW_COUNTS, RowLinear

KERNELS: tuple[KernelName, ...] = ("batched", "transposed", "packed", "default", "packed", "convolution")

PACKED = always("packed").kernels


def layer_of(kernels: Sequence[KernelName] = KERNELS, *, bias: bool = True, keep_weight: bool = False) -> RowLinear:
    plain = nn.Linear(24, 40, bias=bias).requires_grad_(requires_grad=False)
    return RowLinear(plain.weight, plain.bias, kernels, keep_weight=keep_weight)


@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_it_computes_what_a_linear_layer_does(bias: bool) -> None:
    layer = layer_of(bias=bias)
    assert layer.weight is not None
    for shape in [(1, 1, 24), (1, 7, 24), (3, 5, 24), (24,), (70, 24), (1, 200, 24)]:
        rows = torch.randn(shape)
        torch.testing.assert_close(layer(rows), nn.functional.linear(rows, layer.weight, layer.bias))


@pytest.mark.parametrize("name", KERNEL_NAMES)
@pytest.mark.parametrize("count", [1, 2, 5, 8, 16])
@torch.inference_mode()
def test_rows_that_do_not_lie_side_by_side(name: KernelName, count: int) -> None:
    """As a slice of something wider, or transposed."""
    plain = nn.Linear(24, 64).requires_grad_(requires_grad=False)
    layer = RowLinear(plain.weight, plain.bias, always(name).kernels, keep_weight=True)
    for rows in (torch.randn(count, 48)[:, :24], torch.randn(24, count).t()):
        torch.testing.assert_close(layer(rows), plain(rows))


def test_no_rows_at_all() -> None:
    # The LM head in a pass of prefill alone.
    assert layer_of()(torch.empty(1, 0, 24)).shape == (1, 0, 40)


def test_each_number_of_rows_has_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def make(name: KernelName, arranged: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
        def kernel(rows: torch.Tensor) -> torch.Tensor:
            called.append(name)
            return rows.new_zeros(rows.shape[0], 40)

        return kernel

    monkeypatch.setattr(linear, "make_kernel", make)
    layer = layer_of()
    for count in (1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 65, 1000):
        layer(torch.zeros(1, count, 24))
    by_count = dict(zip(ROW_COUNTS, KERNELS, strict=True))
    assert called == [by_count[count] for count in (1, 2, 4, 4, 8, 8, 16, 16, 64, 64, 64, 64)]


def test_memory_that_it_holds() -> None:
    both = layer_of()
    assert both.weight is not None
    assert both.copy_bytes >= 2 * 40 * 24 * 4
    alone = layer_of(PACKED)
    assert alone.weight is None
    assert alone.copy_bytes > 0
    assert set(alone.state_dict()) == {"bias"}
    shared = layer_of(PACKED, keep_weight=True)
    assert shared.weight is not None
    plain = layer_of(DEFAULT.kernels)
    assert plain.weight is not None
    assert plain.copy_bytes == 0

"""What is timed, and that a kernel which does not multiply is not even timed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specdec.kernels import kernel, measuring
from specdec.kernels.kernel import FEW_ROWS, KERNEL_NAMES, Kernel
from specdec.kernels.linear import ROW_COUNTS
from specdec.kernels.measuring import measure_kernels


def weights_of(*shapes: tuple[int, int]) -> dict[tuple[int, int], list[torch.Tensor]]:
    return {shape: [torch.randn(shape) for _ in range(3)] for shape in shapes}


def test_every_kernel_is_timed() -> None:
    seconds = measure_kernels(weights_of((64, 32), (192, 64)))
    assert list(seconds) == [(64, 32), (192, 64)]
    for times in seconds.values():
        assert set(times) == set(KERNEL_NAMES)
        for name, by_count in times.items():
            few = name in ("transposed", "batched")
            assert list(by_count) == [count for count in ROW_COUNTS if count <= FEW_ROWS or not few]
            assert all(time > 0 for time in by_count.values())


def test_nothing_to_measure() -> None:
    assert measure_kernels({}) == {}


def off_by_a_bit(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    return lambda rows: torch.mm(rows, weight.t()) * (1.001 if rows.shape[0] == 4 else 1.0)


def unknown_operator(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    def fail(rows: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("could not create a primitive")

    return fail


@pytest.mark.parametrize("maker", [off_by_a_bit, unknown_operator])
def test_a_kernel_that_is_wrong_for_some_rows_is_left_out(
    monkeypatch: pytest.MonkeyPatch, maker: Callable[[torch.Tensor, torch.Tensor | None], Kernel]
) -> None:
    monkeypatch.setitem(kernel._MAKERS, "transposed", maker)
    (times,) = measure_kernels(weights_of((64, 32))).values()
    assert set(times) == set(KERNEL_NAMES) - {"transposed"}


def test_large_weights_are_measured_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_SAMPLE_BYTES", 16 * 32 * 4)
    monkeypatch.setattr(measuring, "_SHAPE_BYTES", 6 * 16 * 32 * 4)
    weights = [torch.randn(64, 32) for _ in range(2)]
    samples = measuring._samples(weights)
    assert len(samples) == 6
    assert {sample.weight.shape for sample in samples} == {(16, 32)}
    assert len({sample.weight.data_ptr() for sample in samples}) == 6

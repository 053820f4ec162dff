"""How long each kernel takes for weights of a shape, on this machine, with weights that come from memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from specdec.kernels.kernel import (
    FEW_ROWS,
    KERNEL_NAMES,
    Kernel,
    KernelName,
    Layout,
    arrange,
    available_kernels,
    layout_of,
    make_kernel,
)
from specdec.kernels.linear import ROW_COUNTS

Shape = tuple[int, int]
"""Of a weight: (out_features, in_features)."""
Seconds = dict[KernelName, dict[int, float]]
"""Of one shape: time of a call by kernel and number of rows. What was not tried is absent."""

_SAMPLE_BYTES = 16 << 20
"""A larger weight is measured by parts of it."""
_SHAPE_BYTES = 40 << 20
_NUM_SAMPLES = 6
_NUM_LAYERS = 7
_NUM_LONG_LAYERS = 3
"""For calls that take longest: of many rows, and of PyTorch's own kernel, which only has to be beaten."""
_MANY_ROWS = 64
# Largest difference from PyTorch's own kernel, relative to its largest value.
_TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.02}


@dataclass(frozen=True)
class _Sample:
    """A weight, or rows of one, in the layouts that are tried."""

    weight: torch.Tensor
    kernels: Mapping[KernelName, Kernel]


@torch.inference_mode()
def measure_kernels(weights: Mapping[Shape, Sequence[torch.Tensor]]) -> dict[Shape, Seconds]:
    """Time every kernel that this machine has. Takes well under a second a shape.

    Each call takes its weights from memory, as in a forward pass: between two calls on the same weight come those on
    all others. A kernel whose values differ from those of PyTorch's own by more than rounding is left out.

    Args:
        weights: of each shape, the weights of a model; a few are taken. One element type.

    Returns:
        The least time of each call: others may want the processor and its caches, and nothing makes a call faster.
    """
    samples = {shape: _samples(members) for shape, members in weights.items()}
    rows = {
        (shape, count): _some_rows(count, shape, members[0].dtype)
        for shape, members in weights.items()
        for count in ROW_COUNTS
    }
    plans = [
        (name, count)
        for count in ROW_COUNTS
        for name in KERNEL_NAMES
        if count <= FEW_ROWS or name not in ("transposed", "batched")
    ]
    # The first call of a kind is slower, because code is made for it: these are not timed.
    right = {
        shape: [
            name
            for name in some[0].kernels
            if all(_is_right(some[0], name, rows[shape, count]) for each, count in plans if each == name)
        ]
        for shape, some in samples.items()
    }
    times: dict[tuple[Shape, KernelName, int], list[float]] = {}
    for name, count in plans:
        # As in a forward pass: layer after layer by the same kernel.
        for layer in range(_NUM_LONG_LAYERS if name == "default" or count >= _MANY_ROWS else _NUM_LAYERS):
            for shape, some in samples.items():
                if name in right[shape]:
                    took = _time(some[layer % len(some)].kernels[name], rows[shape, count])
                    times.setdefault((shape, name, count), []).append(took)
    seconds: dict[Shape, Seconds] = {shape: {name: {} for name in names} for shape, names in right.items()}
    for (shape, name, count), each in times.items():
        seconds[shape][name][count] = min(each)
    return seconds


def _samples(weights: Sequence[torch.Tensor]) -> list[_Sample]:
    """A few different weights of a shape, or different parts of them if they are large."""
    first = weights[0]
    row_bytes = first.shape[1] * first.element_size()
    part_rows = min(first.shape[0], max(2, _SAMPLE_BYTES // row_bytes) // 2 * 2)
    num_parts = first.shape[0] // part_rows
    num_samples = max(2, min(_NUM_SAMPLES, _SHAPE_BYTES // (part_rows * row_bytes)))
    parts = [weight[start * part_rows : (start + 1) * part_rows] for start in range(num_parts) for weight in weights]
    return [_sample(parts[index]) for index in range(0, len(parts), max(1, len(parts) // num_samples))][:num_samples]


def _sample(weight: torch.Tensor) -> _Sample:
    names = available_kernels((weight.shape[0], weight.shape[1]), weight.dtype)
    layouts: dict[Layout, torch.Tensor] = {}
    for name in names:
        layout = layout_of(name)
        if layout not in layouts:
            layouts[layout] = arrange(weight, layout)
    return _Sample(weight, {name: make_kernel(name, layouts[layout_of(name)], None) for name in names})


def _some_rows(count: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, shape[1], generator=generator).to(dtype)


def _is_right(sample: _Sample, name: KernelName, rows: torch.Tensor) -> bool:
    try:
        found = sample.kernels[name](rows).float()
    except RuntimeError:
        # An operator that this processor or this build does not have after all.
        return False
    expected = functional.linear(rows, sample.weight).float()
    bound = _TOLERANCES[sample.weight.dtype] * float(expected.abs().max())
    return found.shape == expected.shape and float((found - expected).abs().max()) <= bound


def _time(kernel: Kernel, rows: torch.Tensor) -> float:
    # The time of this thread alone where it does all the work: others may want the same processor meanwhile.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    kernel(rows)
    return clock() - began

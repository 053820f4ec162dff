"""Ways to multiply rows with a weight matrix on a CPU: PyTorch's own, and one that is compiled here (`tiled.py`).

None is the fastest throughout. One row is a stream of weights through the processor, and what counts is how many places
in memory are read at once; from some rows on it is arithmetic, and what counts is whether the weights lie as the inner
loop wants them. `measuring.py` finds out which is which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch.nn import functional

from specdec.kernels.available import tiled_kernels

KernelName = Literal["default", "transposed", "batched", "tiled", "packed", "convolution"]
Layout = Literal["plain", "tiled", "packed", "convolution"]
Kernel = Callable[[torch.Tensor], torch.Tensor]
"""From (rows, in_features), however they lie, to (rows, out_features), contiguous; at least one row."""

KERNEL_NAMES: tuple[KernelName, ...] = get_args(KernelName)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

FEW_ROWS = 4
"""Beyond it `transposed` and `batched` have nothing to offer."""
_PACKED_MIN_ROWS = 4
"""oneDNN's code for fewer rows is slower than the one for four, and sums in another order."""
_PACKED_HINT_ROWS = 8
_CONVOLUTION_MAX_ROWS = 32
"""For more rows oneDNN wants the weights in another layout and would reorder them on every call."""

# Padding, and stride or dilation, of a convolution that looks at one row at a time.
_NONE, _ONE = [0, 0], [1, 1]
_POINTWISE: Any = ("none", [], "")


def layout_of(name: KernelName) -> Layout:
    """How the weights must lie in memory for a kernel."""
    return name if name == "tiled" or name == "packed" or name == "convolution" else "plain"


def available_kernels(shape: tuple[int, int], dtype: torch.dtype) -> tuple[KernelName, ...]:
    """Kernels that this machine and this build of PyTorch have; `default` is always among them.

    Args:
        shape: of the weight; (out_features, in_features).
        dtype: of weights and rows.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        return ("default",)
    names: list[KernelName] = ["default", "transposed"]
    if _num_parts(shape[0]) > 1:
        names.append("batched")
    tiled = tiled_kernels() if dtype == torch.float32 else None
    if tiled is not None and shape[0] % tiled.OUT_FEATURES_MULTIPLE == 0:
        names.append("tiled")
    if has_onednn(dtype):
        names += ["packed", "convolution"]
    return tuple(names)


def has_onednn(dtype: torch.dtype) -> bool:
    """Whether the operators on packed weights can be used. They are private to PyTorch, so they may go."""
    operators: Any = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not all(hasattr(operators, name) for name in ("_linear_pointwise", "_convolution_pointwise", "_nbytes")):
        return False
    return dtype != torch.bfloat16 or bool(operators._is_mkldnn_bf16_supported())


def arrange(weight: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The weight as a layout wants it: itself (`plain`), or a copy.

    Args:
        weight: (out_features, in_features), contiguous.
        layout: the layout.
    """
    operators: Any = torch.ops.mkldnn
    arranged = weight
    tiled = tiled_kernels()
    if layout == "tiled" and tiled is not None:
        arranged = weight.view(-1, tiled.NUM_LANES, weight.shape[1]).transpose(1, 2).contiguous()
    elif layout == "packed":
        arranged = operators._reorder_linear_weight(weight, _PACKED_HINT_ROWS)
    elif layout == "convolution":
        rows = [1, weight.shape[1], 1, _PACKED_HINT_ROWS]
        arranged = operators._reorder_convolution_weight(weight[:, :, None, None], _NONE, _ONE, _ONE, 1, rows)
    return arranged


def arranged_bytes(arranged: torch.Tensor) -> int:
    """Memory of a weight in any layout, in bytes."""
    if arranged.is_mkldnn:
        operators: Any = torch.ops.mkldnn
        return int(operators._nbytes(arranged))
    return arranged.numel() * arranged.element_size()


def make_kernel(name: KernelName, arranged: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    """A kernel on one weight.

    Args:
        name: of the kernel.
        arranged: the weight, in the layout of the kernel.
        bias: (out_features,)
    """
    return _MAKERS[name](arranged, bias)


def _default(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    return lambda rows: functional.linear(rows, weight, bias)


def _transposed(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    """Rows as the columns of the right-hand matrix: two or three of them are computed in one reading of the weights."""

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        out = torch.mm(weight, rows.t()).t().contiguous()
        return out if bias is None else out.add_(bias)

    return multiply


def _batched(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    """The weight as a batch of matrices: for one row MKL reads it about twice as fast like this as in one piece."""
    out_features, in_features = weight.shape
    num_parts = _num_parts(out_features)
    parts = weight.view(num_parts, out_features // num_parts, in_features)

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        num_rows = rows.shape[0]
        out = torch.bmm(parts, rows.t().expand(num_parts, -1, -1))
        out = out.view(1, out_features) if num_rows == 1 else out.view(out_features, num_rows).t().contiguous()
        return out if bias is None else out.add_(bias)

    return multiply


def _tiled(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    tiled: Any = tiled_kernels()
    array, out_features = weight.numpy(), weight.shape[0] * weight.shape[2]

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        num_rows = rows.shape[0]
        num_padded = tiled.padded(num_rows)
        if num_padded > num_rows:
            rows = functional.pad(rows, (0, 0, 0, num_padded - num_rows))
        out = torch.empty((num_padded, out_features))
        tiled.multiply(rows.contiguous().numpy(), array, out.numpy())
        if bias is not None:
            out += bias
        return out[:num_rows]

    return multiply


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    """oneDNN's inner product. Each element is summed in one order, whatever the number of rows."""
    linear: Any = torch.ops.mkldnn._linear_pointwise

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        num_rows = rows.shape[0]
        if num_rows >= _PACKED_MIN_ROWS:
            out: torch.Tensor = linear(rows, weight, bias, *_POINTWISE)
            return out
        padded = functional.pad(rows, (0, 0, 0, _PACKED_MIN_ROWS - num_rows))
        out = linear(padded, weight, bias, *_POINTWISE)
        return out[:num_rows]

    return multiply


def _convolution(weight: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    """oneDNN's convolution with rows as an image of height 1.

    Its blocks of weights are narrower than those of the inner product, so that eight rows fit into the registers.
    """
    convolve: Any = torch.ops.mkldnn._convolution_pointwise

    def multiply_few(rows: torch.Tensor) -> torch.Tensor:
        image = rows.t()[None, :, None, :]  # (1, in_features, 1, rows)
        out: torch.Tensor = convolve(image, weight, bias, _NONE, _ONE, _ONE, 1, *_POINTWISE)
        return out[0, :, 0].t()

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[0] <= _CONVOLUTION_MAX_ROWS:
            return multiply_few(rows)
        return torch.cat([multiply_few(few) for few in torch.split(rows, _CONVOLUTION_MAX_ROWS)])

    return multiply


def _num_parts(out_features: int) -> int:
    """Into how many equal parts a weight is cut; 1: it cannot be."""
    return next((parts for parts in (2, 3, 5, 7) if out_features % parts == 0), 1)


_MAKERS: dict[KernelName, Callable[[torch.Tensor, torch.Tensor | None], Kernel]] = {
    "default": _default,
    "transposed": _transposed,
    "batched": _batched,
    "tiled": _tiled,
    "packed": _packed,
    "convolution": _convolution,
}

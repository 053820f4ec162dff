"""Weights of 8 bits, for draft models on CPU: what a draft proposes may be rounded, for the target judges it anyway.

A row of weights is `scale * q` with q from -127 to 127. Rows that go in and come out are bfloat16, with sums in
float32. A pass of few rows is all reading of weights, so it takes a quarter of the time that float32 takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from specdec.kernels.packed import PackedLinear

INT8 = "int8/bfloat16"
"""What a model with such weights calls its element type."""

_LARGEST = 127
_OPERATOR = "_weight_int8pack_mm"
_IN_FEATURES_MULTIPLE = 16
"""The operator reads so many weights at once, beyond the end of a row if there are not as many."""


class Int8Linear(PackedLinear):
    """A linear layer on weights of 8 bits.

    Args:
        weight: (out_features, in_features), on CPU, that `fits_int8`; rounded to 255 levels for each of its rows.
        bias: (out_features,)
    """

    levels: torch.Tensor
    scale: torch.Tensor
    bias: nn.Parameter | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.shape[1], weight.shape[0])
        if not fits_int8(weight):
            raise ValueError(f"{weight.shape[1]} weights in a row are not a multiple of {_IN_FEATURES_MULTIPLE}")
        values = weight.float()
        scale = (values.abs().amax(1, keepdim=True) / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        self.register_buffer("levels", (values / scale).round().to(torch.int8).contiguous())
        self.register_buffer("scale", scale[:, 0].to(torch.bfloat16))
        self.register_parameter(
            "bias", None if bias is None else nn.Parameter(bias.to(torch.bfloat16), requires_grad=False)
        )
        self._multiply: Any = getattr(torch.ops.aten, _OPERATOR)
        # Found faster than buffers, which a pass of one row can tell.
        self._weights = self.levels, self.scale

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """See `PackedLinear`: bfloat16."""
        out: torch.Tensor = self._multiply(rows.bfloat16().contiguous(), *self._weights)
        return out if self.bias is None else out + self.bias


def fits_int8(weight: torch.Tensor) -> bool:
    """Whether a weight, (out_features, in_features), is of a size that there are products for."""
    return weight.shape[1] % _IN_FEATURES_MULTIPLE == 0


def has_int8(device: torch.device) -> bool:
    """Whether a device has 8-bit products. The operator is private to PyTorch, so it may go."""
    return device.type == "cpu" and hasattr(torch.ops.aten, _OPERATOR)

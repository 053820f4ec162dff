"""Linear layers on weights of 4 or 8 bits and rows of 8, where the processor has dot products of bytes.

For draft models: what a draft proposes may be rounded, for the target judges it anyway. Weights that a GGUF file had in
4 bits are kept as they were, but for their scales, which become float16, as in the file.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch

from specdec.kernels.available import byte_kernels
from specdec.kernels.int4 import GROUP_SIZE, read_levels
from specdec.kernels.packed import PackedLinear

_LEVELS = 255
_TOLERANCE = 0.01
"""Largest difference of a weight from what is kept of it, relative to the largest weight: float16 has its limits."""


class ByteLinear(PackedLinear):
    """A linear layer on packed weights; `byte_linear` makes them.

    Args:
        packed: weights and scales, from `pack` of `kernels`.
        bits: of a weight.
        sizes: out_features, in_features.
        bias: (out_features,)
        kernels: from `byte_kernels`.
    """

    def __init__(
        self,
        packed: tuple[np.ndarray, np.ndarray],
        bits: int,
        sizes: torch.Size,
        bias: torch.Tensor | None,
        kernels: ModuleType,
    ) -> None:
        super().__init__(sizes[1], sizes[0])
        self.bits = bits
        self._packed, self._bias = packed, bias
        self._multiply = kernels.multiply

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """See `PackedLinear`: float32."""
        out = torch.empty((rows.shape[0], self.out_features))
        self._multiply(rows.float().contiguous().numpy(), *self._packed, out.numpy())
        return out if self._bias is None else out + self._bias


def byte_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> ByteLinear | None:
    """A linear layer packed; None if its size or its numbers do not fit, or the processor has no such products.

    Args:
        weight: (out_features, in_features), float32, on CPU.
        bias: (out_features,)
    """
    kernels = byte_kernels()
    if kernels is None or weight.shape[0] % kernels.NUM_LANES or weight.shape[1] % GROUP_SIZE:
        return None
    read = read_levels(weight)
    levels, scale, least = read or _rounded(weight)
    scale, least = scale.half(), least.half()
    kept = levels.view(*scale.shape, GROUP_SIZE) * scale.float()[..., None] + least.float()[..., None]
    difference = (kept.view(weight.shape) - weight).abs().max()
    if not difference <= _TOLERANCE * weight.abs().max():
        return None
    bits = 8 if read is None else 4
    packed = kernels.pack(levels.numpy(), scale.numpy(), least.numpy(), bits)
    return ByteLinear(packed, bits, weight.shape, bias, kernels)


def _rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Levels of 8 bits, (out_features, in_features), with scale and least value of each group."""
    groups = weight.reshape(weight.shape[0], -1, GROUP_SIZE)
    least, largest = groups.aminmax(dim=-1)
    # Rounded as they will be kept, so that the levels make up for it.
    least = least.half().float()
    scale = ((largest - least) / _LEVELS).half().float()
    levels = ((groups - least[..., None]) / scale[..., None]).nan_to_num(0.0).round().clamp(0, _LEVELS)
    return levels.to(torch.uint8).view(weight.shape), scale, least

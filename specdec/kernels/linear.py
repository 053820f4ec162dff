"""A linear layer that has a kernel for each number of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from specdec.kernels.kernel import Kernel, KernelName, Layout, arrange, arranged_bytes, layout_of, make_kernel

ROW_COUNTS = (1, 2, 4, 8, 16, 64)
"""A kernel is chosen for each: it serves so many rows, and fewer down to the one before. The last serves all beyond."""


class RowLinear(nn.Module):
    """Stands where a linear layer stood in a loaded model. Computes the same, and no gradients.

    Args:
        weight: (out_features, in_features), contiguous.
        bias: (out_features,)
        kernels: name of the kernel for each of `ROW_COUNTS`.
        keep_weight: keep the weight as it is even if no kernel reads it.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Sequence[KernelName], *, keep_weight: bool
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        layouts: Mapping[Layout, torch.Tensor] = {
            layout: arrange(weight, layout) for layout in sorted({layout_of(name) for name in kernels})
        }
        made = {name: make_kernel(name, layouts[layout_of(name)], bias) for name in set(kernels)}
        self._kernels: list[Kernel] = [self._nothing]
        for count, name in zip(ROW_COUNTS, kernels, strict=True):
            self._kernels += [made[name]] * (count + 1 - len(self._kernels))
        self._last = self._kernels[-1]
        self.register_parameter("weight", _parameter(weight) if keep_weight or "plain" in layouts else None)
        self.register_parameter("bias", None if bias is None else _parameter(bias))
        self.copy_bytes = sum(arranged_bytes(each) for layout, each in layouts.items() if layout != "plain")
        """Memory of copies in other layouts than the weight's own, in bytes."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features)"""
        flat = rows.reshape(-1, self.in_features)
        num_rows = flat.shape[0]
        kernel = self._kernels[num_rows] if num_rows < len(self._kernels) else self._last
        return kernel(flat).view(*rows.shape[:-1], self.out_features)

    def _nothing(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.new_empty((0, self.out_features))


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    """The same one, if it is one already: others may share it."""
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)

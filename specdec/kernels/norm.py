"""RMSNorm in few calls."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class FewRowsNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019) in four calls.

    Args:
        norm: whose weight it takes, on CPU.
    """

    def __init__(self, norm: Any) -> None:
        super().__init__()
        size = norm.weight.numel()
        self._weight: torch.Tensor = norm.weight.detach() * math.sqrt(size)
        # The root of size * (mean square + epsilon) is the hypotenuse of the norm and this.
        self._least = torch.tensor(math.sqrt(size * norm.variance_epsilon))
        # For compiled code.
        self.weight = self._weight.numpy()
        self.least = size * norm.variance_epsilon

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(..., hidden_size), float32, to the same shape."""
        lengths = torch.hypot(torch.linalg.vector_norm(rows, dim=-1, keepdim=True), self._least)
        return rows * (self._weight / lengths)

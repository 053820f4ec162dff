"""What linear layers on packed weights have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn


class PackedLinear(nn.Module, ABC):
    """A linear layer whose products have a type of their own.

    Args:
        in_features: of a row that goes in.
        out_features: of one that comes out.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features), of the same element type."""
        shape = *rows.shape[:-1], self.out_features
        if not rows.numel():
            return rows.new_empty(shape)
        return self.multiply(rows.flatten(0, -2)).to(rows.dtype).view(shape)

    @abstractmethod
    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows, in_features), at least one, to (rows, out_features), in whatever type costs least."""

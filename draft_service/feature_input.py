"""What a draft that reads features begins with: the token of a row, and what the target had in mind just before it."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from specdec.runner.hidden_states import unit_scale

NAME = "feature_input"
"""Of the module inside the draft's model, and so of its tensors."""


class FeatureInput(nn.Module):
    """Input of the first layer, made of a token's embedding and of a state of the position before.

    That state comes from the target, where it has run the position. Where only the draft has, its own last hidden state
    takes the place. Where nobody can say, as at the first token of a text, there is nothing.

    Args:
        hidden_size: of target and draft.
        num_states: hidden states of the target that make up its features.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        num_states: int,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.hidden_size, self.num_states = hidden_size, num_states
        self.token = nn.Linear(hidden_size, hidden_size, device=device, dtype=dtype)
        self.target = nn.Linear(num_states * hidden_size, hidden_size, bias=False, device=device, dtype=dtype)
        self.own = nn.Linear(hidden_size, hidden_size, bias=False, device=device, dtype=dtype)

    def of_tokens(self, embeddings: torch.Tensor) -> torch.Tensor:
        """The part of the tokens; (..., hidden_size) to the same."""
        return self.token(unit_scale(embeddings).to(embeddings.dtype))  # type: ignore[no-any-return]

    def of_features(self, features: torch.Tensor) -> torch.Tensor:
        """The part of the target's features; (..., states, hidden_size) to (..., hidden_size)."""
        return self.target(features.flatten(-2))  # type: ignore[no-any-return]

    def of_own(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The part of the draft's own last hidden states; (..., hidden_size) to the same."""
        return self.own(unit_scale(hidden_states).to(hidden_states.dtype))  # type: ignore[no-any-return]


def feature_input(model: PreTrainedModel) -> FeatureInput | None:
    """That of a draft; None if it reads tokens alone."""
    found = getattr(model, NAME, None)
    return found if isinstance(found, FeatureInput) else None

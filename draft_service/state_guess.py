"""What stands below the layers of a draft that reads features: a guess of what the target's lower layers would give.

Such a draft is the upper layers of its target. Where the target has run a position, they read its own hidden state
there, so that their keys and values are the target's. For a token that it has not run, they read a guess, made of the
token and of the state one position before.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel

NAME = "state_guess"
"""Of the module inside the draft's model, and so of its tensors."""
_EPSILON = 1e-6


class StateGuess(nn.Module):
    """Guesses a hidden state: a linear function, and a gated layer that corrects it (SwiGLU, Shazeer 2020).

    Args:
        hidden_size: of target and draft.
        width: of the gated layer.
        device: of the parameters.
        dtype: of the parameters.
    """

    scale: torch.Tensor

    def __init__(
        self, hidden_size: int, width: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=bias, device=device, dtype=dtype)

        self.token = linear(hidden_size, hidden_size, bias=True)
        self.before = linear(hidden_size, hidden_size)
        self.gate = linear(2 * hidden_size, width)
        self.up = linear(2 * hidden_size, width)
        self.down = linear(width, hidden_size)
        # Of the states, whose size depends on the target and the depth: what is learnt is of size 1.
        self.register_buffer("scale", torch.ones((), device=device, dtype=dtype))

    def forward(self, embeddings: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """The states at some positions; (..., hidden_size).

        Args:
            embeddings: of their tokens, (..., hidden_size).
            before: the state one position before, (..., hidden_size): the target's, or itself a guess. Zeros where
                nobody knows.
        """
        tokens, before = unit_scale(embeddings), unit_scale(before)
        known = torch.cat([tokens, before], -1)
        corrected: torch.Tensor = self.down(functional.silu(self.gate(known)) * self.up(known))
        guessed: torch.Tensor = self.scale * (self.token(tokens) + self.before(before) + corrected)
        return guessed


def guess_width(config: PreTrainedConfig) -> int:
    """Width of the gated layer: a small part of a layer of the target."""
    hidden_size: int = config.hidden_size
    return max(1, 3 * hidden_size // 4)


def unit_scale(states: torch.Tensor) -> torch.Tensor:
    """Scale the last dimension to a root mean square of 1; zeros stay."""
    return states * torch.rsqrt(states.float().square().mean(-1, keepdim=True) + _EPSILON).to(states.dtype)


def state_guess(model: PreTrainedModel) -> StateGuess | None:
    """That of a draft; None if it reads tokens alone."""
    found = getattr(model, NAME, None)
    return found if isinstance(found, StateGuess) else None

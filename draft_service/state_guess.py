"""What stands in a draft for the middle layers of its target: a guess of the state that they would give.

A draft that reads features is its target without the middle layers. Where the target has run a position, the upper
layers read its own hidden state there, so that their keys and values are the target's. For a token that it has not run,
they read a guess, made of what the lower layers make of the token and of the state above the middle one position
before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedConfig, PreTrainedModel

from specdec.runner.hidden_states import layer_list

NAME = "state_guess"
"""Of the module inside the draft's model, and so of its tensors."""
_EPSILON = 1e-6
_WIDTH_MULTIPLE = 64


class StateGuess(nn.Module):
    """Guesses a hidden state: a linear function, and a gated layer that corrects it (SwiGLU, Shazeer 2020).

    Args:
        hidden_size: of target and draft.
        width: of the gated layer.
        layer: of the draft's model, the first one that reads states; those before it are the target's lower layers.
        device: of the parameters.
        dtype: of the parameters.
    """

    scale: torch.Tensor

    def __init__(
        self,
        hidden_size: int,
        width: int,
        layer: int = 0,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.layer = layer
        self._sizes = [hidden_size, width, width]
        # Linear function and both parts of the gated layer read the same: one product.
        self.known = nn.Linear(2 * hidden_size, sum(self._sizes), device=device, dtype=dtype)
        self.down = nn.Linear(width, hidden_size, bias=False, device=device, dtype=dtype)
        # How much the state changes from one position to the next, by dimension: what is learnt is of size 1.
        self.register_buffer("scale", torch.ones(hidden_size, device=device, dtype=dtype))

    def forward(self, lower: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """The states at some positions; (..., hidden_size).

        Args:
            lower: what the lower layers give there, or the tokens' embeddings if there are none; (..., hidden_size).
            before: the state one position before, (..., hidden_size): the target's, or itself a guess. Zeros where
                nobody knows.
        """
        known = torch.cat([unit_scale(lower), unit_scale(before)], -1)
        linear, gate, up = self.known(known).split(self._sizes, -1)
        guessed: torch.Tensor = self.scale * (linear + self.down(functional.silu(gate) * up))
        return guessed


def replace_states(
    model: PreTrainedModel, layer: int, states: Callable[[torch.Tensor], torch.Tensor]
) -> RemovableHandle:
    """Have a layer of a model read something else than what the layers before it give.

    Args:
        model: a decoder.
        layer: index of the layer.
        states: from what the layer would read, (batch, rows, hidden_size), to what it reads, of the same shape.

    Returns:
        With which to leave off.
    """

    def replace(_module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if arguments:
            return (states(arguments[0]), *arguments[1:]), named
        return arguments, {**named, "hidden_states": states(named["hidden_states"])}

    place = f"{layer_list(model)}.{layer}"
    return model.get_submodule(place).register_forward_pre_hook(replace, with_kwargs=True)


def guess_width(config: PreTrainedConfig) -> int:
    """Width of the gated layer: what feed-forward layers usually have, 8/3 of the hidden size (Shazeer 2020), rounded
    to what processors like."""
    hidden_size: int = config.hidden_size
    return math.ceil(8 * hidden_size / 3 / _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE


def unit_scale(states: torch.Tensor) -> torch.Tensor:
    """Scale the last dimension to a root mean square of 1; zeros stay."""
    size = states.shape[-1]
    lengths = torch.linalg.vector_norm(states, dim=-1, keepdim=True, dtype=torch.float32)
    factors = math.sqrt(size) / lengths.clamp(min=math.sqrt(size * _EPSILON))
    scaled: torch.Tensor = states * factors.to(states.dtype)
    return scaled


def state_guess(model: PreTrainedModel) -> StateGuess | None:
    """That of a draft; None if it reads tokens alone."""
    found = getattr(model, NAME, None)
    return found if isinstance(found, StateGuess) else None

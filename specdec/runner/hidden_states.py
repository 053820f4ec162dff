"""Features: hidden states inside a target model, from which a draft model that was trained on them guesses better.

A target has made up its mind about more than the next token when it has run a position; a draft that reads what it had
in mind needs few layers of its own (EAGLE, Li et al. 2024, arXiv:2401.15077).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel


class NoPlainLayersError(Exception):
    """A model is not made of a plain list of layers."""


class HiddenStates:
    """Hidden states of a decoder in its last forward pass: what flows from one layer to the next.

    In bfloat16, because some grow beyond what float16 holds, and a draft has no use for more digits. Their numbers are
    those of the layers they come from, counted from 1; the last one is taken before the last norm.

    Args:
        model: whose states.

    Raises:
        NoPlainLayersError: the model's layers cannot be found.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._layers = model.get_submodule(layer_list(model))
        self.num_states = len(list(self._layers.children()))
        """How many there are: one for each layer."""
        self._states: dict[int, torch.Tensor] = {}
        self._watched: set[int] = set()

    def watch(self, numbers: Sequence[int]) -> None:
        """Keep these states from the next pass on.

        Raises:
            ValueError: see `check_numbers`.
        """
        check_numbers(numbers, self.num_states)
        for number in set(numbers) - self._watched:
            self._layers.get_submodule(str(number - 1)).register_forward_hook(functools.partial(self._keep, number))
            self._watched.add(number)

    def read(self, numbers: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        """States of some rows of the last pass; (rows, states, hidden_size), bfloat16, on the first state's device.

        Args:
            numbers: of states that are watched.
            rows: indices of rows.
        """
        device = self._states[numbers[0]].device
        picked = torch.tensor(rows, device=device)
        states = [self._states[number] for number in numbers]
        return torch.stack([each[picked.to(each.device)].to(device) for each in states], dim=1).to(torch.bfloat16)

    def all(self) -> Mapping[int, torch.Tensor]:
        """Those of the last pass by number; each (rows, hidden_size), in the model's type."""
        return self._states

    def drop(self) -> None:
        """Let go of the memory of the last pass."""
        self._states.clear()

    def _keep(self, number: int, _module: torch.nn.Module, _arguments: object, output: Any) -> None:
        self._states[number] = (output if isinstance(output, torch.Tensor) else output[0])[0]


def check_numbers(numbers: Sequence[int], num_layers: int) -> None:
    """Check numbers of hidden states.

    Raises:
        ValueError: there is none, one is not between 1 and `num_layers`, or they do not increase.
    """
    if not numbers or numbers[0] < 1 or numbers[-1] > num_layers or sorted(set(numbers)) != list(numbers):
        raise ValueError(f"hidden states {list(numbers)} are not increasing numbers from 1 to {num_layers}")


def layer_list(model: PreTrainedModel) -> str:
    """Name of the module that is the list of a decoder's layers.

    Raises:
        NoPlainLayersError: there is none.
    """
    lists = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == model.config.num_hidden_layers
    ]
    if not lists:
        raise NoPlainLayersError(f"a {model.config.model_type} model has no plain list of layers")
    return str(min(lists, key=len))

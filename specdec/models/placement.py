"""Which device each part of a model lies on, where several share a model that is too large for one.

Layers go by their order, so that rows change devices once from one to the next. The devices work one after the other:
this makes room, not speed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from accelerate.hooks import remove_hook_from_module
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specdec.models.errors import ModelError
from specdec.runner.hidden_states import NoPlainLayersError, layer_list


def place_parts(config: PreTrainedConfig, devices: Sequence[torch.device]) -> dict[str, torch.device]:
    """A device for each part of a model, as `device_map` of transformers: of its weights, each has about as many bytes.

    Args:
        config: of the model.
        devices: at least one.

    Raises:
        ModelError: the model has no plain list of layers, or fewer layers than there are devices.
    """
    if len(devices) == 1:
        return {"": devices[0]}
    with torch.device("meta"):
        # It changes the config that it is given.
        model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(config))  # type: ignore[no-untyped-call]
    try:
        path = layer_list(model)
    except NoPlainLayersError as error:
        raise ModelError(f"{error}, so several devices cannot share it; choose one device") from None
    layers = dict(model.get_submodule(path).named_children())
    if len(layers) < len(devices):
        raise ModelError(f"{len(devices)} devices cannot share {len(layers)} layers; choose fewer")
    before, behind = _around(model, path)
    placed = dict.fromkeys(before, devices[0]) | dict.fromkeys(behind, devices[-1])
    share = _num_bytes([model]) / len(devices)
    filled = float(_num_bytes(model.get_submodule(name) for name in before))
    for name, layer in layers.items():
        size = _num_bytes([layer])
        placed[f"{path}.{name}"] = devices[min(int((filled + size / 2) / share), len(devices) - 1)]
        filled += size
    return placed


def move_between_parts_only(model: PreTrainedModel) -> None:
    """Take away what transformers has put before each module inside a layer: what a layer needs is moved for all of it.

    Args:
        model: loaded over several devices.
    """
    for layer in model.get_submodule(layer_list(model)).children():
        for inner in layer.children():
            remove_hook_from_module(inner, recurse=True)


def _around(model: PreTrainedModel, path: str) -> tuple[list[str], list[str]]:
    """Parts that are not layers: those that rows go through first, and last."""
    before: list[str] = []
    behind: list[str] = []
    parts = path.split(".")
    for depth, part in enumerate(parts):
        prefix = ".".join(parts[:depth])
        is_behind = False
        for name, child in model.get_submodule(prefix).named_children():
            is_behind |= name == part
            # What has no weights makes something of positions for all layers.
            if name != part:
                (behind if is_behind and _num_bytes([child]) else before).append(f"{prefix}.{name}".lstrip("."))
    # An output layer that is the embedding once more lies where that is.
    held = {id(weight) for name in before for weight in model.get_submodule(name).parameters()}
    tied = [name for name in behind if any(id(weight) in held for weight in model.get_submodule(name).parameters())]
    return before + tied, [name for name in behind if name not in tied]


def _num_bytes(modules: Iterable[torch.nn.Module]) -> int:
    """Of weights; those that are shared count once."""
    weights = {id(weight): weight for module in modules for weight in module.parameters()}
    return sum(weight.nbytes for weight in weights.values())

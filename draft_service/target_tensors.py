"""The tensors that a trained draft has from its target, by the names that they have in the target's files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from specdec.models.errors import ModelError, first_line
from specdec.runner.hidden_states import layer_list


def target_name(draft: PreTrainedModel, name: str, layers: Sequence[int]) -> str:
    """What a tensor of a draft is called in the target.

    Args:
        draft: the draft's model, or a student.
        name: of the tensor there.
        layers: numbers of the target's layers that its own stand for.
    """
    places = f"{layer_list(draft)}."
    if not name.startswith(places):
        return name
    number, _, rest = name.removeprefix(places).partition(".")
    return f"{places}{layers[int(number)]}.{rest}"


def read_tensors(directory: Path, model: PreTrainedModel, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Tensors in the weights of a target, in the file's own types; those that are not there are left out.

    Args:
        directory: of the target.
        model: of the same family.
        names: of the tensors.

    Raises:
        ModelError: the files are damaged.
    """
    # Some files name the tensors of the decoder without the prefix that it has inside the model with a head.
    by_name = {name: name for name in names}
    by_name |= {name.removeprefix(f"{model.base_model_prefix}."): name for name in names}
    tensors: dict[str, torch.Tensor] = {}
    try:
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                for found in by_name.keys() & set(file.keys()):
                    tensors[by_name[found]] = file.get_tensor(found)
    except Exception as error:
        raise ModelError(f"the weights in {directory} cannot be read ({first_line(error)}); get them again") from error
    return tensors


def read_embeddings(directory: Path, model: PreTrainedModel) -> torch.Tensor:
    """The input embeddings in the weights of a target; (rows, hidden_size), in the file's own type.

    Args:
        directory: of the target.
        model: of the same family; its names are looked for.

    Raises:
        ModelError: the tensor is not there.
    """
    name = embeddings_name(model)
    tensors = read_tensors(directory, model, [name])
    if name not in tensors:
        raise ModelError(f"the weights in {directory} have no input embeddings, so no draft can share them")
    return tensors[name]


def embeddings_name(model: PreTrainedModel) -> str:
    """Name of a model's input embeddings."""
    return _name_of(model, model.get_input_embeddings())


def head_name(model: PreTrainedModel) -> str:
    """Name of the weight of a model's LM head."""
    holder: Any = model
    return _name_of(model, holder.get_output_embeddings())


def sha256_of(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's bytes, in hex."""
    flat: Any = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(flat).hexdigest()


def _name_of(model: PreTrainedModel, module: object) -> str:
    """Name of the weight of a module."""
    return next(f"{name}.weight" for name, each in model.named_modules() if each is module)

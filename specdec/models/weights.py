"""Loading weights: safetensors only, complete, of the right shapes, with the ragged attention."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specdec.models.errors import ModelError, first_line
from specdec.models.placement import move_between_parts_only, place_parts
from specdec.models.progress import no_library_bars
from specdec.models.weight_index import weight_files
from specdec.runner.attention import ATTENTION_NAME

_ADAPTER = "adapter_config.json"
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})


def load_weights(
    directory: Path, config: PreTrainedConfig, dtype: torch.dtype, *devices: torch.device
) -> PreTrainedModel:
    """The model of a directory, in eval mode, without gradients, with the attention of ragged batches.

    Args:
        directory: of its files.
        config: of it.
        dtype: of its weights.
        devices: where it lies; several share its layers out, the first ones on the first.

    Raises:
        ModelError: no safetensors, tensors missing or of other shapes than the config says, or too little memory.
    """
    check_safetensors(directory)
    try:
        with no_library_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=dtype,
                # Straight onto the device: a model may be larger than the memory of its host.
                device_map=None if devices == (torch.device("cpu"),) else place_parts(config, devices),
                attn_implementation=ATTENTION_NAME,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(
            f"{directory} does not fit into the memory of {', '.join(map(str, devices))} as {dtype}; "
            "choose a smaller dtype or model, or more devices"
        ) from error
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{directory} cannot be loaded ({first_line(error)}); "
            "get an intact copy of its files, with weights that fit its config.json"
        ) from error
    model: PreTrainedModel
    model, loading_info = loaded
    if len(devices) > 1:
        move_between_parts_only(model)
    check_complete(str(directory), loading_info)
    model.train(mode=False)
    model.requires_grad_(requires_grad=False)
    return model


def check_safetensors(directory: Path) -> None:
    """Refuse a directory without safetensors; pickled weights run code when they are read.

    Raises:
        ModelError: says whether there are pickled weights or none, or that an index names something else.
    """
    if (directory / _ADAPTER).exists():
        raise ModelError(f"{directory} is an adapter of another model, which is not served; save the two merged")
    suffixes = {path.suffix for path in directory.iterdir()}
    if ".safetensors" in suffixes:
        weight_files(directory)
        return
    if suffixes & _PICKLE_SUFFIXES:
        raise ModelError(
            f"{directory} has pickled weights only, which are never read because they can run code; "
            "save the model again with save_pretrained, which writes safetensors"
        )
    raise ModelError(f"{directory} has no .safetensors file; give a directory or hub id that has the weights")


def check_complete(name: str, loading_info: Mapping[str, Any]) -> None:
    """Refuse a model that transformers has filled up with random weights.

    Raises:
        ModelError: names the first tensor that is missing.
    """
    missing = sorted(loading_info["missing_keys"])
    if missing:
        raise ModelError(
            f"{name} lacks {len(missing)} tensors that its config asks for, such as {missing[0]}; "
            "get a complete copy of the weights"
        )

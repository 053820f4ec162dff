"""A draft model made of the target: the same model without some of its middle layers, not trained any further."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from specdec.models.progress import default_report
from specdec.models.source import provide_model
from specdec.tokenizer_files import TokenizerFiles


def save_shortened(model_name: str, num_layers: int, directory: Path) -> Path:
    """Keep `num_layers` decoder layers, the first and the last halves of them, and save the result.

    Args:
        model_name: as `specdec.models` finds it.
        num_layers: at most as many as the model has.
        directory: made if need be.
    """
    source = provide_model(model_name, default_report())
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, local_files_only=True)
    layers = model.model.layers
    kept = [*range((num_layers + 1) // 2), *range(len(layers) - num_layers // 2, len(layers))]
    model.model.layers = torch.nn.ModuleList(layers[index] for index in kept)
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = index
    model.config.num_hidden_layers = num_layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[index] for index in kept]
    model.save_pretrained(directory)
    TokenizerFiles.load(source).save(directory)
    return directory

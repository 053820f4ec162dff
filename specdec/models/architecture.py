"""Which architectures can be served: decided from the config, before any weights are fetched or read."""

from __future__ import annotations

import json
from pathlib import Path

import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedConfig

from specdec.models.errors import ModelError, first_line

# Kinds of layer in `layer_types`, as transformers names them. What is in neither set may mask its attention in a way
# that the ragged batch does not know, so it is refused as well.
_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
_RECURRENT_LAYERS = frozenset(
    {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "mamba2", "recurrent", "recurrent_attention"}
)


_LARGEST = {
    "num_hidden_layers": 1024,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 14,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "vocab_size": 1 << 22,
}
"""Well above the sizes of any model that there is."""


def read_config(directory: Path) -> PreTrainedConfig:
    """The config of a model directory.

    Raises:
        ModelError: there is none, it is damaged, or transformers has no code of its own for it.
    """
    path = directory / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        model_type = content.get("model_type")
    except FileNotFoundError:
        raise ModelError(
            f"{directory} has no config.json; give a directory or hub id of a transformers model, or a .gguf file"
        ) from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({first_line(error)}); get an intact copy of it") from error
    if model_type not in CONFIG_MAPPING:
        if "auto_map" in content:
            raise ModelError(
                f"{directory} needs the Python code of its repository, and trust_remote_code is always off here; "
                "choose a model that transformers knows itself"
            )
        raise ModelError(
            f"transformers {transformers.__version__} does not know the architecture {model_type!r} of {directory}; "
            "upgrade transformers or choose another model"
        )
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{path} is not a valid config of a {model_type} model ({first_line(error)}); get an intact copy of it"
        ) from error
    check_sizes(config)
    return config


def check_sizes(config: PreTrainedConfig) -> None:
    """Refuse sizes that no model has: transformers would work for hours before it found that no weights fit.

    Raises:
        ModelError: names the first.
    """
    own = config.get_text_config(decoder=True)
    for name, most in _LARGEST.items():
        size = getattr(own, name, None)
        if size is not None and not (isinstance(size, int) and 1 <= size <= most):
            raise ModelError(f"the config of the model has {name} {size!r}; it must be a number from 1 to {most}")


def check_architecture(config: PreTrainedConfig) -> None:
    """Refuse a model whose cache cannot be cut back, or whose attention cannot be computed over a ragged batch.

    Raises:
        ModelError: with the reason.
    """
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name} is an encoder-decoder model; choose a decoder-only one")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"transformers has no causal language model of type {name}; choose a decoder-only model")
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    layer_types = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())
    recurrent = layer_types & _RECURRENT_LAYERS
    if recurrent or getattr(model_class, "_is_stateful", False):
        kinds = f" ({', '.join(sorted(recurrent))})" if recurrent else ""
        raise ModelError(
            f"{name} keeps a running state{kinds} that cannot be cut back after a rejected draft token; "
            "choose a model whose layers all use attention"
        )
    if other := layer_types - _ATTENTION_LAYERS:
        raise ModelError(
            f"{name} has layers of kind {', '.join(sorted(other))}, which are not served; "
            "choose a model with full or sliding attention"
        )
    if not getattr(model_class, "_supports_attention_backend", False):
        raise ModelError(
            f"{name} computes its attention outside of transformers' attention interface, so its sequences cannot be "
            "batched here; choose another model, or a newer transformers if it has moved there"
        )


def max_positions(config: PreTrainedConfig) -> int | None:
    """Longest sequence the model was made for, in tokens; None if its config does not say."""
    positions = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None

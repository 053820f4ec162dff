"""The student: a shallow decoder of the target's family, made of layers of the target."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from draft_service.draft_vocabulary import restrict_head
from draft_service.feature_input import NAME, FeatureInput
from draft_service.training.unrolled import ATTENTION_NAME as UNROLLED
from specdec.models.errors import ModelError
from specdec.runner.hidden_states import NoPlainLayersError, check_numbers, layer_list

_FEW_LAYERS = 8
_LAST_LINEARS = frozenset({"o_proj", "out_proj", "down_proj", "c_proj", "dense", "dense_4h_to_h", "fc2", "fc_out"})
"""What decoders call the linear layers whose results they add to the stream that runs through all layers."""


def choose_layers(setting: str, num_layers: int, *, with_features: bool) -> tuple[int, ...]:
    """The layers of the target that the student begins with.

    Args:
        setting: their numbers, with commas; empty: the last, or without features two at each end, one of a small
            target.
        num_layers: of the target.
        with_features: whether the student reads features.

    Raises:
        ModelError: a number is not that of a layer, or they do not increase.
    """
    if not setting.strip() and with_features:
        return (num_layers - 1,)
    if not setting.strip():
        return (0, 1, num_layers - 2, num_layers - 1) if num_layers >= _FEW_LAYERS else (0,)
    try:
        layers = tuple(int(part) for part in setting.split(","))
    except ValueError:
        layers = (-1,)
    if layers[0] < 0 or layers[-1] >= num_layers or sorted(set(layers)) != list(layers):
        raise ModelError(
            f"layers {setting!r} are not increasing numbers of the target's {num_layers} layers; give some of "
            f"0 to {num_layers - 1}, such as 0,{num_layers - 1}"
        )
    return layers


def choose_features(setting: str, num_layers: int) -> tuple[int, ...]:
    """The hidden states of the target that the student reads.

    Args:
        setting: their numbers, with commas; "none"; or empty: the last, and one at five sixths of the depth.
        num_layers: of the target.

    Raises:
        ModelError: a number is not that of a layer, they do not increase, or the last is missing.
    """
    if setting.strip() == "none":
        return ()
    if not setting.strip():
        return tuple(sorted({max(1, 5 * num_layers // 6), num_layers}))
    try:
        numbers = tuple(int(part) for part in setting.split(","))
        check_numbers(numbers, num_layers)
    except ValueError:
        numbers = ()
    # The last is what the student learns to foresee.
    if num_layers not in numbers:
        raise ModelError(
            f"features {setting!r} are not increasing numbers of the target's {num_layers} layers with the last among "
            f"them; give some, such as {num_layers}, or none"
        )
    return numbers


def make_student(
    target: PreTrainedModel, layers: Sequence[int], draft_vocab: torch.Tensor, num_states: int = 0
) -> PreTrainedModel:
    """The untrained student in float32, on the target's device, with its embeddings frozen.

    Args:
        target: whose values it begins with.
        layers: numbers of the target's layers, increasing.
        draft_vocab: (draft_vocab_size,), int64, the token ids that its head scores.
        num_states: hidden states of the target that make up the features it reads; 0: it reads tokens alone.

    Raises:
        ModelError: the target's module is not made of a plain list of layers.
    """
    config = student_config(target.config, layers)
    backend = UNROLLED if num_states else "sdpa" if getattr(type(target), "_supports_sdpa", False) else "eager"
    student: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation=backend
    ).to(target.device)
    try:
        places = f"{layer_list(target)}."
    except NoPlainLayersError as error:
        raise ModelError(f"{error}, so no draft can be made of it") from error
    kept = {f"{places}{old}.": f"{places}{new}." for new, old in enumerate(layers)}
    state = {}
    for name, tensor in target.state_dict().items():
        if not name.startswith(places):
            state[name] = tensor
        elif (prefix := places + name.removeprefix(places).partition(".")[0] + ".") in kept:
            state[kept[prefix] + name.removeprefix(prefix)] = tensor
    missing, unexpected = student.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise ModelError(
            f"layers {', '.join(map(str, layers))} of a {target.config.model_type} model do not make a smaller one "
            f"({(missing + unexpected)[0]}); choose others with --layers"
        )
    restrict_head(student, draft_vocab)
    if num_states:
        student.add_module(NAME, FeatureInput(config.hidden_size, num_states, target.device))
        _silence_layers(student)
    student.get_input_embeddings().requires_grad_(requires_grad=False)
    # Never in training mode: dropout would only blur the target's laws.
    student.train(mode=False)
    made: PreTrainedModel = student
    return made


@torch.no_grad()
def _silence_layers(student: PreTrainedModel) -> None:
    """Have the layers add nothing at first: what they would make of an input that is new to them is worse than that.

    With SmolLM2-135M and 200,000 tokens of training: 44 % of the target's most probable tokens, and 36 % without.
    """
    for name, module in student.get_submodule(layer_list(student)).named_modules():
        if name.rpartition(".")[2] in _LAST_LINEARS:
            for parameter in module.parameters():
                parameter.zero_()


def student_config(config: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """The target's config with these layers only: whatever it lists for each layer is cut down to them."""
    num_layers = config.num_hidden_layers
    cut = copy.deepcopy(config)
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == num_layers:
            setattr(cut, name, [value[layer] for layer in layers])
    cut.num_hidden_layers = len(layers)
    cut.use_cache = False
    return cut

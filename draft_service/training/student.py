"""The student: a shallow decoder of the target's family, made of layers of the target."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from draft_service.draft_vocabulary import restrict_head
from draft_service.state_guess import NAME, StateGuess, guess_width
from draft_service.training.unrolled import ATTENTION_NAME as UNROLLED
from specdec.models.errors import ModelError
from specdec.runner.hidden_states import NoPlainLayersError, layer_list

_FEW_LAYERS = 8


def choose_layers(setting: str, num_layers: int) -> tuple[int, ...]:
    """The layers of the target that a student begins with which reads tokens alone.

    Args:
        setting: their numbers, with commas; empty: two at each end, one of a small target.
        num_layers: of the target.

    Raises:
        ModelError: a number is not that of a layer, or they do not increase.
    """
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


def choose_upper_layers(setting: int | None, num_layers: int) -> tuple[int, ...]:
    """The layers of the target that a student begins with which reads the target's states below them.

    Args:
        setting: how many; None: five, a quarter of a small target. 0: the student reads tokens alone.
        num_layers: of the target.

    Raises:
        ModelError: there would be none below them.
    """
    count = max(1, min(5, num_layers // 4)) if setting is None else setting
    if count >= num_layers:
        raise ModelError(
            f"the target has {num_layers} layers, so {count} upper ones leave none below them; give at most "
            f"{num_layers - 1} with --upper-layers"
        )
    return tuple(range(num_layers - count, num_layers))


def make_student(
    target: PreTrainedModel, layers: Sequence[int], draft_vocab: torch.Tensor, *, reads_states: bool = False
) -> PreTrainedModel:
    """The untrained student in float32, on the target's device, with its embeddings frozen.

    Args:
        target: whose values it begins with.
        layers: numbers of the target's layers, increasing.
        draft_vocab: (draft_vocab_size,), int64, the token ids that its head scores.
        reads_states: whether it reads the target's states below these layers, or tokens alone.

    Raises:
        ModelError: the target's module is not made of a plain list of layers.
    """
    config = student_config(target.config, layers)
    backend = UNROLLED if reads_states else "sdpa" if getattr(type(target), "_supports_sdpa", False) else "eager"
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
    if reads_states:
        student.add_module(NAME, StateGuess(config.hidden_size, guess_width(config), target.device))
        # Its rows are the target's own: to train them on little text blurs those of rare tokens.
        student.get_output_embeddings().requires_grad_(requires_grad=False)
        _forget_positions(student)
    student.get_input_embeddings().requires_grad_(requires_grad=False)
    # Never in training mode: dropout would only blur the target's laws.
    student.train(mode=False)
    made: PreTrainedModel = student
    return made


@torch.no_grad()
def _forget_positions(student: PreTrainedModel) -> None:
    """Have a model add no embeddings of positions (GPT-2) to what it reads: they are in the target's states already."""
    for module in student.modules():
        if isinstance(module, torch.nn.Embedding) and module is not student.get_input_embeddings():
            module.weight.zero_()
            module.requires_grad_(requires_grad=False)


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

"""The student: a shallow decoder of the target's family, made of layers of the target."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from draft_service.draft_vocabulary import restrict_head
from draft_service.state_guess import NAME, StateGuess, guess_width
from draft_service.training.settings import TrainingSettings
from draft_service.training.unrolled import ATTENTION_NAME as UNROLLED
from specdec.models.errors import ModelError
from specdec.runner.hidden_states import NoPlainLayersError, layer_list

_FEW_LAYERS = 8


@dataclass(frozen=True)
class StudentLayers:
    """Which layers of the target a student is made of."""

    layers: tuple[int, ...]
    num_lower: int
    """How many of them are below the ones that read states."""
    reads_states: bool

    @classmethod
    def choose(cls, settings: TrainingSettings, num_layers: int) -> StudentLayers:
        """As settings want them.

        Args:
            settings: of the run.
            num_layers: of the target.

        Raises:
            ModelError: there are no such layers, or the student is asked for what it cannot do.
        """
        num_lower, layers = choose_states_layers(settings.upper_layers, settings.lower_layers, num_layers)
        if layers and settings.own_samples:
            raise ModelError(
                "a draft that reads the target's states writes no text of its own; leave --own-samples out, or give "
                "--upper-layers 0"
            )
        return cls(layers or choose_layers(settings.layers, num_layers), num_lower, bool(layers))

    @property
    def own(self) -> tuple[int, ...]:
        """Those that the student has while it is trained: what the lower ones give is known then."""
        return self.layers[self.num_lower :]

    @property
    def features(self) -> tuple[int, ...]:
        """Hidden states that the draft reads of the target."""
        # A state has the number of the layer that gives it, counted from 1: that of the next one counted from 0.
        return self.own[:1] if self.reads_states else ()

    @property
    def text_features(self) -> tuple[int, ...]:
        """Hidden states that are kept of every text: those, and what the lower layers give."""
        return ((self.num_lower,) if self.num_lower else ()) + self.features


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


def choose_states_layers(upper: int | None, lower: int | None, num_layers: int) -> tuple[int, tuple[int, ...]]:
    """The layers of the target that make up a student which reads the target's states.

    Args:
        upper: how many of its upper layers; None: 7 of 15. 0: the student reads tokens alone.
        lower: how many of its lower layers; None: 1 of 15.
        num_layers: of the target.

    Returns:
        How many lower ones, and the numbers of all; of none at all, if the student reads tokens alone.

    Raises:
        ModelError: they would leave none between them.
    """
    if upper == 0:
        return 0, ()
    num_upper = max(1, num_layers * 7 // 15) if upper is None else upper
    num_lower = num_layers // 15 if lower is None else lower
    if num_lower + num_upper >= num_layers:
        raise ModelError(
            f"the target has {num_layers} layers, so {num_upper} upper and {num_lower} lower ones leave none between "
            "them; give fewer with --upper-layers or --lower-layers"
        )
    return num_lower, (*range(num_lower), *range(num_layers - num_upper, num_layers))


def make_student(
    target: PreTrainedModel,
    layers: Sequence[int],
    draft_vocab: torch.Tensor,
    *,
    reads_states: bool = False,
    num_trained_layers: int = 0,
) -> PreTrainedModel:
    """The untrained student in float32, on the target's device, with its embeddings frozen.

    Args:
        target: whose values it begins with.
        layers: numbers of the target's layers, increasing.
        draft_vocab: (draft_vocab_size,), int64, the token ids that its head scores.
        reads_states: whether it reads the target's states below these layers, or tokens alone. If it does, only its
            guess of states is trained: its layers see what they saw in the target.
        num_trained_layers: of a student that reads states, how many of its layers are trained nevertheless, from the
            lowest on.

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
        student.requires_grad_(requires_grad=False)
        student.add_module(NAME, StateGuess(config.hidden_size, guess_width(config), device=target.device))
        for layer in list(student.get_submodule(layer_list(student)))[:num_trained_layers]:
            layer.requires_grad_(requires_grad=True)
    student.get_input_embeddings().requires_grad_(requires_grad=False)
    # Never in training mode: dropout would only blur the target's laws.
    student.train(mode=False)
    made: PreTrainedModel = student
    return made


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

from __future__ import annotations

import copy

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel

from draft_service.feature_runner import FeatureRunner, FeatureWork
from draft_service.state_guess import NAME, state_guess
from draft_service.trained_draft import own_tensors
from draft_service.training.student import choose_layers, choose_states_layers, make_student, student_config
from specdec.models.errors import ModelError
from specdec.runner.attention import ATTENTION_NAME
from specdec.runner.cache import SequenceCache
from tests.draft_service.training.running import tied_llama
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, VOCAB_SIZE, plain_logits, plain_states, tiny_model
from tests.tiny_models import tiny_llama, tiny_llama_config

TEXT = [5, 17, 3, 80, 41, 2, 66, 9, 30, 12]
DRAFT_VOCAB = torch.arange(0, VOCAB_SIZE, 3)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_layers_make_the_target_again(name: str) -> None:
    """On the draft vocabulary; so every tensor has found its place, and every value of the config."""
    target = tiny_model(name)
    student = make_student(target, (0, 1), DRAFT_VOCAB)
    with torch.no_grad():
        logits = student(input_ids=torch.tensor([TEXT]), use_cache=False).logits[0]
    expected = plain_logits(target, TEXT)[:, DRAFT_VOCAB]
    assert torch.allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_layer_is_the_targets_layer(name: str) -> None:
    target = tiny_model(name)
    student = make_student(target, (1,), DRAFT_VOCAB)
    assert student.config.num_hidden_layers == 1
    own = own_tensors(student)
    layers = {key: tensor for key, tensor in own.items() if ".0." in key}
    assert layers
    of_target = target.state_dict()
    assert all(torch.equal(tensor, of_target[key.replace(".0.", ".1.")]) for key, tensor in layers.items())


@pytest.mark.parametrize("target", [tiny_llama(), tied_llama()], ids=["untied", "tied"])
def test_the_embeddings_are_frozen_and_the_head_is_its_own(target: PreTrainedModel) -> None:
    before = copy.deepcopy(target.state_dict())
    student = make_student(target, (0,), DRAFT_VOCAB)
    names = {name for name, parameter in student.named_parameters() if parameter.requires_grad}
    assert names == set(own_tensors(student))
    assert "lm_head.weight" in names
    assert "model.embed_tokens.weight" not in names
    assert own_tensors(student)["lm_head.weight"].shape == (len(DRAFT_VOCAB), 32)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())
    assert target.config.num_hidden_layers == 2


def test_what_the_config_lists_by_layer_is_cut() -> None:
    config = LlamaConfig(num_hidden_layers=4)
    config.layer_types = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    cut = student_config(config, (0, 3))
    assert cut.layer_types == ["full_attention", "sliding_attention"]
    assert cut.num_hidden_layers == 2
    assert config.num_hidden_layers == 4


@pytest.mark.parametrize(
    ("setting", "num_layers", "expected"),
    [
        ("", 30, (0, 1, 28, 29)),
        ("", 8, (0, 1, 6, 7)),
        ("", 2, (0,)),
        (" ", 1, (0,)),
        ("0,3, 5", 6, (0, 3, 5)),
    ],
)
def test_layers(setting: str, num_layers: int, expected: tuple[int, ...]) -> None:
    assert choose_layers(setting, num_layers) == expected


@pytest.mark.parametrize(
    ("upper", "lower", "num_layers", "expected"),
    [
        (None, None, 30, (2, (0, 1, *range(16, 30)))),
        (None, None, 12, (0, (7, 8, 9, 10, 11))),
        (None, None, 2, (0, (1,))),
        (0, None, 30, (0, ())),
        (0, None, 1, (0, ())),
        (5, 0, 30, (0, (25, 26, 27, 28, 29))),
        (26, 3, 30, (3, (0, 1, 2, *range(4, 30)))),
    ],
)
def test_layers_with_states_between_them(
    upper: int | None, lower: int | None, num_layers: int, expected: tuple[int, tuple[int, ...]]
) -> None:
    assert choose_states_layers(upper, lower, num_layers) == expected


@pytest.mark.parametrize(
    ("upper", "lower", "num_layers"), [(30, 0, 30), (31, 0, 30), (28, 2, 30), (None, None, 1), (1, 1, 2)]
)
def test_layers_with_none_between_them(upper: int | None, lower: int | None, num_layers: int) -> None:
    with pytest.raises(ModelError, match=f"the target has {num_layers} layers, .* leave none between them"):
        choose_states_layers(upper, lower, num_layers)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_upper_layers_on_the_targets_states_make_the_target_again(name: str) -> None:
    """On the draft vocabulary."""
    target = tiny_model(name)
    student = make_student(target, (1,), DRAFT_VOCAB, reads_states=True)
    student.set_attn_implementation(ATTENTION_NAME)
    guess = state_guess(student)
    assert guess is not None
    states = plain_states(target, TEXT)[:, 0]
    work = FeatureWork(
        SequenceCache(), TEXT, len(TEXT), states=states, is_known=torch.ones(len(TEXT), dtype=torch.bool)
    )
    (logits,) = FeatureRunner(student, len(DRAFT_VOCAB), guess).forward([work])
    assert torch.allclose(logits, plain_logits(target, TEXT)[:, DRAFT_VOCAB], atol=1e-3)


@pytest.mark.parametrize("num_trained", [0, 1])
def test_only_the_guess_is_trained_and_layers_that_are_to_be(num_trained: int) -> None:
    target = tiny_llama(layers=3)
    student = make_student(target, (1, 2), DRAFT_VOCAB, reads_states=True, num_trained_layers=num_trained)
    names = {name for name, parameter in student.named_parameters() if parameter.requires_grad}
    # The scale is measured.
    assert names == set(own_tensors(student)) - {f"{NAME}.scale"}
    assert {name for name in names if name.startswith(NAME)} == {
        f"{NAME}.{each}" for each in ("known.weight", "known.bias", "down.weight")
    }
    of_layers = {name.split(".")[2] for name in names if not name.startswith(NAME)}
    assert of_layers == {"0"} if num_trained else not of_layers


@pytest.mark.parametrize("setting", ["x", "0,", "1,0", "0,0", "-1", "0,4", "1.5"])
def test_layers_that_there_are_not(setting: str) -> None:
    with pytest.raises(ModelError, match="are not increasing numbers of the target's 4 layers"):
        choose_layers(setting, 4)


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    target = tiny_llama()
    target.config = tiny_llama_config(layers=3)
    with pytest.raises(ModelError, match="no plain list of layers"):
        make_student(target, (0,), DRAFT_VOCAB)

from __future__ import annotations

import copy

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel

from draft_service.feature_input import NAME, FeatureInput
from draft_service.trained_draft import own_tensors
from draft_service.training.student import choose_features, choose_layers, make_student, student_config
from draft_service.training.unrolled import Unrolled
from specdec.models.errors import ModelError
from specdec.runner.hidden_states import layer_list
from tests.draft_service.training.running import tied_llama
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, VOCAB_SIZE, plain_logits, tiny_model
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
    assert choose_layers(setting, num_layers, with_features=False) == expected
    # A student with features begins with the last, unless others are named.
    is_named = bool(setting.strip())
    assert choose_layers(setting, num_layers, with_features=True) == (expected if is_named else (num_layers - 1,))


@pytest.mark.parametrize(
    ("setting", "num_layers", "expected"),
    [
        ("", 30, (25, 30)),
        (" ", 2, (1, 2)),
        ("", 1, (1,)),
        ("none", 30, ()),
        ("30", 30, (30,)),
        ("1, 4,6", 6, (1, 4, 6)),
    ],
)
def test_features(setting: str, num_layers: int, expected: tuple[int, ...]) -> None:
    assert choose_features(setting, num_layers) == expected


@pytest.mark.parametrize("setting", ["x", "4,", "4,1", "4,4", "0,4", "5", "4,5", "2"])
def test_features_that_there_are_not_or_without_the_last(setting: str) -> None:
    with pytest.raises(ModelError, match="not increasing numbers of the target's 4 layers with the last among them"):
        choose_features(setting, 4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_student_with_features_begins_without_a_say_of_its_layers(name: str) -> None:
    """What its head sees at first is its input, so that nothing but the best linear guess speaks."""
    student = make_student(tiny_model(name), (1,), DRAFT_VOCAB, num_states=2)
    assert isinstance(student.get_submodule(NAME), FeatureInput)
    assert {name for name in own_tensors(student) if name.startswith(NAME)} == {
        f"{NAME}.{each}" for each in ("token.weight", "token.bias", "target.weight", "own.weight")
    }
    seen: list[torch.Tensor] = []
    layer = student.get_submodule(f"{layer_list(student)}.0")
    layer.register_forward_hook(
        lambda _module, arguments, output: seen.extend([arguments[0], output if torch.is_tensor(output) else output[0]])
    )
    with torch.no_grad():
        student(inputs_embeds=torch.randn(1, 5, 32), use_cache=False, unrolled=Unrolled())
    # gpt_oss's experts are no linear layers.
    assert torch.equal(*seen) or name == "gpt_oss"


@pytest.mark.parametrize("setting", ["x", "0,", "1,0", "0,0", "-1", "0,4", "1.5"])
def test_layers_that_there_are_not(setting: str) -> None:
    with pytest.raises(ModelError, match="are not increasing numbers of the target's 4 layers"):
        choose_layers(setting, 4, with_features=False)


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    target = tiny_llama()
    target.config = tiny_llama_config(layers=3)
    with pytest.raises(ModelError, match="no plain list of layers"):
        make_student(target, (0,), DRAFT_VOCAB)

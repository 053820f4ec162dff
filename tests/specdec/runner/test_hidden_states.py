"""Hidden states of a ragged batch are those that transformers gives of each sequence alone."""

from __future__ import annotations

import random

import pytest
import torch

from specdec.runner.cache import SequenceCache
from specdec.runner.hidden_states import HiddenStates, NoPlainLayersError, check_numbers
from specdec.runner.runner import ModelRunner, Work
from tests.specdec.runner.test_runner import some_tokens
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, VOCAB_SIZE, plain_states, tiny_model
from tests.tiny_models import tiny_llama, tiny_llama_config

TOLERANCE = 1e-2
"""bfloat16 has 8 bits."""


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_states_are_those_of_transformers_of_each_sequence_alone(name: str) -> None:
    model = tiny_model(name)
    hidden_states = HiddenStates(model)
    assert hidden_states.num_states == 2
    hidden_states.watch((1, 2))
    runner = ModelRunner(model, VOCAB_SIZE, hidden_states)
    generator = random.Random(name)
    texts = [some_tokens(generator, length) for length in (21, 9, 13, 5)]
    caches = [SequenceCache() for _ in texts]
    expected = [plain_states(model, text) for text in texts]
    for text, cache in zip(texts, caches, strict=True):
        runner.forward([Work(cache, text[:3], 0)])
    batch = [
        Work(caches[0], texts[0][3:], 1, num_features=4, feature_states=(1, 2)),
        Work(caches[1], texts[1][3:], 0),
        Work(caches[2], texts[2][3:], 0, num_features=10, feature_states=(2,)),
        Work(caches[3], texts[3][3:], 2, num_features=1, feature_states=(1, 2)),
    ]
    runner.forward(batch)
    assert batch[1].features is None
    for work, wanted in zip(batch, expected, strict=True):
        if work.features is not None:
            numbers = [number - 1 for number in work.feature_states]
            assert work.features.shape == (work.num_features, len(numbers), 32)
            assert work.features.dtype == torch.bfloat16
            torch.testing.assert_close(
                work.features.float(), wanted[-work.num_features :, numbers], atol=TOLERANCE, rtol=TOLERANCE
            )
    assert not torch.allclose(expected[0][:, 0], expected[0][:, 1], atol=0.5), "layers that do nothing show nothing"


def test_nodes_of_a_tree_have_the_states_of_their_paths() -> None:
    model = tiny_model("gemma2")
    hidden_states = HiddenStates(model)
    hidden_states.watch((2,))
    runner = ModelRunner(model, VOCAB_SIZE, hidden_states)
    prefix = some_tokens(random.Random(1), 9)
    work = Work(SequenceCache(), [*prefix, 5, 6, 7], 4, [-1, -1, 0], num_features=4, feature_states=(2,))
    runner.forward([work])
    assert work.features is not None
    for row, path in enumerate(([], [5], [6], [5, 7])):
        expected = plain_states(model, [*prefix, *path])[-1, 1:]
        torch.testing.assert_close(work.features[row].float(), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_pass_that_nobody_wants_features_of_leaves_none_behind() -> None:
    model = tiny_llama()
    hidden_states = HiddenStates(model)
    hidden_states.watch((1,))
    runner = ModelRunner(model, 320, hidden_states)
    runner.forward([Work(SequenceCache(), [1, 2], 1)])
    assert not hidden_states._states, "a large pass would stay in memory until the next one"


def test_large_states_do_not_overflow() -> None:
    model = tiny_llama()
    hidden_states = HiddenStates(model)
    hidden_states.watch((1,))
    work = Work(SequenceCache(), [1, 2], 0, num_features=2, feature_states=(1,))
    model.model.embed_tokens.weight.data *= 1e6
    ModelRunner(model, 320, hidden_states).forward([work])
    assert work.features is not None
    assert float(work.features.abs().max()) > 1e5
    assert bool(work.features.isfinite().all())


@pytest.mark.parametrize("numbers", [(), (0,), (0, 1), (3,), (1, 3), (2, 1), (1, 1)])
def test_numbers_that_there_are_not(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="are not increasing numbers from 1 to 2"):
        check_numbers(numbers, 2)
    with pytest.raises(ValueError, match="are not increasing numbers from 1 to 2"):
        HiddenStates(tiny_llama()).watch(numbers)


@pytest.mark.parametrize("numbers", [(1,), (2,), (1, 2)])
def test_numbers_that_there_are(numbers: tuple[int, ...]) -> None:
    check_numbers(numbers, 2)


def test_a_model_without_a_list_of_layers_has_none() -> None:
    model = tiny_llama()
    model.config = tiny_llama_config(layers=3)
    with pytest.raises(NoPlainLayersError, match="a llama model has no plain list of layers"):
        HiddenStates(model)

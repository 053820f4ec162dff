"""A model keeps its values whatever kernels it is given, and no more memory than allowed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specdec.kernels import replacing
from specdec.kernels.choosing import Choice
from specdec.kernels.kernel import KERNEL_NAMES, KernelName
from specdec.kernels.linear import ROW_COUNTS, RowLinear
from specdec.kernels.measuring import Seconds, Shape
from specdec.kernels.replacing import give_kernels
from specdec.models.errors import ModelError
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.settings import LinearKernel
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, VOCAB_SIZE, tiny_model
from tests.tiny_models import tiny_llama

TOLERANCE = 1e-4
"""Largest difference of a logit, relative to the spread of the logits."""


def fastest(*names: KernelName) -> Seconds:
    """As measured where one kernel is the best for each number of rows in turn."""
    return {
        each: {count: 1e-6 if names[index % len(names)] == each else 1e-3 for index, count in enumerate(ROW_COUNTS)}
        for each in KERNEL_NAMES
    }


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    # The weights of tiny models are all too small to be worth it.
    monkeypatch.setattr(replacing, "_MIN_ELEMENTS", 0)
    return tmp_path / "cache"


def measured(monkeypatch: pytest.MonkeyPatch, seconds: Seconds) -> list[Shape]:
    """Have every measurement find this; returns a list of the shapes that are measured."""
    shapes: list[Shape] = []

    def measure(weights: Mapping[Shape, Sequence[torch.Tensor]]) -> dict[Shape, Seconds]:
        shapes.extend(weights)
        return dict.fromkeys(weights, seconds)

    monkeypatch.setattr(replacing, "measure_kernels", measure)
    return shapes


def all_logits(model: PreTrainedModel) -> torch.Tensor:
    """Passes of many sizes over one sequence."""
    runner = ModelRunner(model, VOCAB_SIZE)
    cache = SequenceCache()
    logits = []
    for count in (1, 2, 1, 3, 5, 8, 13, 70):
        token_ids = [(7 * cache.length + index) % VOCAB_SIZE for index in range(count)]
        logits += runner.forward([Work(cache, token_ids, count)])
    return torch.cat(logits)


def layers_of(model: PreTrainedModel, *kinds: type[nn.Module]) -> list[nn.Module]:
    return [module for module in model.modules() if type(module) in kinds]


MIXTURES: dict[str, tuple[KernelName, ...]] = {
    "batched_then_packed": ("batched", "batched", "packed", "packed", "packed", "packed"),
    "transposed_then_convolution": ("default", "transposed", "transposed", *("convolution",) * 3),
    "packed_alone": ("packed",) * 6,
}


@pytest.mark.parametrize("kernels", MIXTURES.values(), ids=MIXTURES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_those_of_the_default(
    monkeypatch: pytest.MonkeyPatch, name: str, kernels: tuple[KernelName, ...]
) -> None:
    model = tiny_model(name)
    expected = all_logits(model)
    linears = layers_of(model, nn.Linear, Conv1D)
    measured(monkeypatch, fastest(*kernels))
    give_kernels(model, "auto")
    assert len(layers_of(model, RowLinear)) == len(linears) > 0
    assert not layers_of(model, nn.Linear, Conv1D)
    found = all_logits(model)
    assert not torch.equal(found, expected)
    assert float((found - expected).abs().max() / expected.std()) < TOLERANCE


def test_what_is_really_measured_gives_the_same_logits_too(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_llama()
    expected = all_logits(model)
    with caplog.at_level(logging.INFO, "specdec"):
        give_kernels(model, "auto")
    assert float((all_logits(model) - expected).abs().max() / expected.std()) < TOLERANCE
    (line,) = caplog.messages
    assert line.startswith("linear kernels by number of rows: ")
    assert "1 of 320 x 32: " in line


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = measured(monkeypatch, fastest("packed"))
    give_kernels(tiny_llama(), "auto")
    assert sorted(shapes) == [(16, 32), (32, 32), (32, 64), (64, 32), (320, 32)]
    shapes.clear()
    give_kernels(tiny_llama(seed=1), "auto")
    assert shapes == []
    give_kernels(tiny_llama(vocab_size=384), "auto")
    assert shapes == [(384, 32)]


@pytest.mark.parametrize("setting", ["auto", "invariant"])
def test_tied_embeddings_keep_their_weight(monkeypatch: pytest.MonkeyPatch, setting: LinearKernel) -> None:
    measured(monkeypatch, fastest("packed"))
    model = tiny_model("gemma3")
    embeddings: Any = model.get_input_embeddings().weight
    expected = embeddings.clone()
    assert model.lm_head.weight is embeddings
    give_kernels(model, setting)
    assert torch.equal(embeddings, expected)
    assert model.lm_head.weight is embeddings
    # No one else reads these.
    assert all(layer.weight is None for layer in layers_of(model, RowLinear) if layer is not model.lm_head)


def test_small_weights_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "_MIN_ELEMENTS", 320 * 32)
    measured(monkeypatch, fastest("packed"))
    model = tiny_llama()
    give_kernels(model, "auto")
    assert layers_of(model, RowLinear) == [model.lm_head]


def test_a_shape_for_which_pytorch_is_best_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, fastest("default"))
    model = tiny_llama()
    give_kernels(model, "auto")
    assert layers_of(model, RowLinear) == []


def test_default_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = measured(monkeypatch, fastest("packed"))
    model = tiny_llama()
    give_kernels(model, "default")
    assert layers_of(model, RowLinear) == []
    assert shapes == []


def test_other_types_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = measured(monkeypatch, fastest("packed"))
    model = tiny_llama()
    torch.nn.Module.to(model, torch.float16)
    give_kernels(model, "auto")
    assert layers_of(model, RowLinear) == []
    assert shapes == []
    with pytest.raises(ModelError, match=r"for float32 and bfloat16 on CPU, and the model is torch\.float16 on cpu"):
        give_kernels(model, "invariant")


def test_invariant_without_its_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "has_onednn", lambda dtype: False)
    with pytest.raises(ModelError, match="needs oneDNN's packed weights"):
        give_kernels(tiny_llama(), "invariant")


@pytest.mark.parametrize(("free_bytes", "has_copies"), [(1 << 30, True), (1 << 10, False)])
def test_second_copies_only_where_memory_allows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, free_bytes: int, has_copies: bool
) -> None:
    monkeypatch.setattr(replacing, "free_memory_bytes", lambda device: free_bytes)
    measured(monkeypatch, fastest("batched", "batched", "batched", "packed", "packed", "packed"))
    model = tiny_model("gemma3")
    with caplog.at_level(logging.INFO, "specdec"):
        give_kernels(model, "auto")
    layers = [layer for layer in layers_of(model, RowLinear) if isinstance(layer, RowLinear)]
    assert any(layer.weight is not None and layer.copy_bytes > 0 for layer in layers) == has_copies
    assert ("; 0 bytes of second copies" in caplog.messages[-1]) != has_copies
    assert any("and 256 are allowed" in message for message in caplog.messages) != has_copies


def test_a_choice_says_what_it_holds() -> None:
    assert Choice(("batched", "batched", "packed", "packed", "packed", "packed")).layouts == {"plain", "packed"}

"""Weights of 4 bits: read back exactly, multiplied as documented, refused where they are something else."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from torch import nn
from transformers.pytorch_utils import Conv1D

from specdec.kernels import int4
from specdec.kernels.int4 import GROUP_SIZE, Int4Linear, check_int4, is_int4, pack_int4, read_levels
from specdec.models.errors import ModelError
from specdec.models.loading import load_model
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from tests.specdec.models.saved_models import save_tiny_model
from tests.specdec.runner.tiny_architectures import VOCAB_SIZE, tiny_model
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

TYPES = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1)


def quantised(weight: torch.Tensor, kind: GGMLQuantizationType) -> torch.Tensor:
    """The weight as a GGUF file of that type gives it back."""
    numbers = gguf.quants.quantize(weight.detach().contiguous().numpy(), kind)
    return torch.from_numpy(gguf.quants.dequantize(numbers, kind))


def quantise(model: nn.Module, kind: GGMLQuantizationType, leave_out: str = "") -> None:
    """Round the linear layers of a model that consist of whole groups, all but the LM head."""
    for name, layer in model.named_modules():
        if name in ("lm_head", leave_out):
            continue
        if isinstance(layer, nn.Linear) and layer.in_features % GROUP_SIZE == 0:
            layer.weight.data = quantised(layer.weight, kind)
        elif isinstance(layer, Conv1D):
            layer.weight.data = quantised(layer.weight.t(), kind).t().contiguous()


def some_weight(kind: GGMLQuantizationType, seed: int = 0) -> torch.Tensor:
    return quantised(torch.randn(64, 96, generator=torch.Generator().manual_seed(seed)) * 0.1, kind)


@pytest.mark.parametrize("kind", TYPES)
def test_levels_are_read_back_exactly(kind: GGMLQuantizationType) -> None:
    weight = some_weight(kind)
    read = read_levels(weight)
    assert read is not None
    levels, scale, least = read
    assert (levels.dtype, levels.shape, scale.shape, least.shape) == (torch.uint8, (64, 96), (64, 3), (64, 3))
    assert int(levels.max()) <= 15
    again = least.repeat_interleave(GROUP_SIZE, 1) + scale.repeat_interleave(GROUP_SIZE, 1) * levels.float()
    assert torch.equal(again, weight)
    # A file has them as float16, and these are the same numbers.
    assert torch.equal(scale.half().float(), scale)


def test_groups_that_do_not_use_all_levels() -> None:
    steps = torch.tensor([0.0, 1, 2, 5, 11, 13, 14, 14]).repeat(4)
    same = torch.full((GROUP_SIZE,), -0.25)
    two = torch.tensor([0.5, 0.125]).repeat(16)
    weight = torch.cat([steps * 0.375 - 3, same, two, torch.zeros(GROUP_SIZE)])[None]
    read = read_levels(weight)
    assert read is not None
    levels, scale, least = (each[0] for each in read)
    again = least.repeat_interleave(GROUP_SIZE) + scale.repeat_interleave(GROUP_SIZE) * levels.float()
    assert torch.equal(again, weight[0])


def test_other_numbers_are_not_taken_for_it() -> None:
    weight = some_weight(TYPES[1])
    assert read_levels(torch.randn(4, 64)) is None
    weight[3, 40] = torch.nextafter(weight[3, 40], torch.tensor(9.0))
    assert read_levels(weight) is None
    assert read_levels(some_weight(GGMLQuantizationType.Q5_1)) is None
    assert read_levels(torch.full((1, 32), torch.nan)) is None
    assert read_levels(torch.tensor([[torch.inf, *[0.0] * 31]])) is None


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("num_rows", [1, 2, 4, 5, 8, 33])
def test_what_is_rounded_and_what_is_not(kind: GGMLQuantizationType, num_rows: int) -> None:
    read = read_levels(some_weight(kind))
    assert read is not None
    levels, scale, least = read
    layer = Int4Linear(levels, scale, least, None)
    rows = torch.randn(num_rows, 96, generator=torch.Generator().manual_seed(num_rows))

    def rounded(values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.bfloat16).double().repeat_interleave(GROUP_SIZE, 1)

    weight = (levels.double() - 8) * rounded(scale) + rounded(least + 8 * scale)
    expected = rows.to(torch.bfloat16).double() @ weight.t()
    # The rest is the rounding of the result to bfloat16, and of sums to float32.
    torch.testing.assert_close(layer(rows).double(), expected, rtol=2**-8 + 1e-6, atol=1e-5)


def test_shapes_and_bias() -> None:
    read = read_levels(some_weight(TYPES[0]))
    assert read is not None
    layer = Int4Linear(*read, torch.arange(64.0))
    assert layer(torch.zeros(2, 3, 96)).shape == (2, 3, 64)
    assert layer(torch.zeros(1, 0, 96)).shape == (1, 0, 64)
    assert torch.equal(layer(torch.zeros(1, 96))[0], torch.arange(64.0))
    assert layer(torch.zeros(1, 96, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_model_keeps_its_values_but_for_rounding(name: str) -> None:
    model = tiny_model(name)
    if name == "llama":
        # 48 is no multiple of the group.
        model = tiny_llama(vocab_size=VOCAB_SIZE)
    quantise(model, TYPES[1])
    work = [5, 6, 7, 8, 9]
    (expected,) = ModelRunner(model, VOCAB_SIZE).forward([Work(SequenceCache(), work, 5)])
    assert not is_int4(model)
    pack_int4(model)
    assert is_int4(model)
    assert {type(layer) for layer in model.modules()} & {nn.Linear, Conv1D} == {nn.Linear}, "the LM head stays"
    (found,) = ModelRunner(model, VOCAB_SIZE).forward([Work(SequenceCache(), work, 5)])
    difference = float((found - expected).norm() / expected.norm())
    assert 1e-4 < difference < 0.05


def test_one_layer_of_another_type_refuses_the_model() -> None:
    model = tiny_llama()
    quantise(model, TYPES[1], leave_out="model.layers.1.mlp.up_proj")
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj does not consist of 4-bit numbers"):
        pack_int4(model)


def test_groups_that_do_not_fit_refuse_the_model() -> None:
    model = tiny_model("llama")
    quantise(model, TYPES[1])
    with pytest.raises(ModelError, match=r"down_proj does not consist of 4-bit numbers in groups of 32"):
        pack_int4(model)


def test_an_operator_that_computes_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    quantise(model, TYPES[1])
    monkeypatch.setattr(int4, "_MIDDLE", 7)
    with pytest.raises(ModelError, match="4-bit products come out wrong on this processor"):
        pack_int4(model)


def test_where_it_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    check_int4(torch.device("cpu"))
    with pytest.raises(ModelError, match="int4 is for CPU, and the device is cuda:0; choose --dtype bfloat16"):
        check_int4(torch.device("cuda", 0))
    monkeypatch.setattr(int4, "_OPERATORS", ("_weight_int3pack_mm_for_cpu",))
    with pytest.raises(ModelError, match=r"PyTorch \d.* has no 4-bit products on CPU"):
        check_int4(torch.device("cpu"))


def test_loading(tmp_path: Path) -> None:
    model = tiny_llama()
    quantise(model, TYPES[1])
    loaded = load_model(str(save_tiny_model(tmp_path / "tiny", model)), device="cpu", dtype="int4")
    assert loaded.info.dtype == "int4/bfloat16"
    assert is_int4(loaded.model)
    assert loaded.info.vocab_size == TINY_VOCAB_SIZE


def test_it_is_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.models.loading.provide_model", lambda *_: pytest.fail("fetched"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ModelError, match="int4 is for CPU"):
        load_model("smollm2-135m-instruct", device="cuda", dtype="int4")

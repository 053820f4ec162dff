"""Packed models against the same models in float32, over ragged batches with prefills, steps and trees."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from specdec.kernels.available import byte_kernels
from specdec.kernels.byte_linear import ByteLinear
from specdec.kernels.few_rows import FewRowsLayer, join_for_few_rows, pack_for_few_rows, packed_dtype
from specdec.kernels.int4 import Int4Linear
from specdec.kernels.int8 import Int8Linear
from specdec.kernels.linear import RowLinear
from specdec.kernels.replacing import give_kernels
from specdec.runner.cache import SequenceCache
from specdec.runner.hidden_states import HiddenStates
from specdec.runner.runner import ModelRunner, Work
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, VOCAB_SIZE, tiny_llama_with, tiny_model

LLAMAS = [name for name in ARCHITECTURES if name.startswith("llama")]


@pytest.fixture(params=["by bytes", "by PyTorch"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """Of layers with weights of 8 bits: those of this processor, and those that do for any."""
    if request.param == "by bytes" and byte_kernels() is not None:
        return ByteLinear
    monkeypatch.setattr("specdec.kernels.byte_linear.byte_kernels", lambda: None)
    return Int8Linear


@pytest.fixture
def by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.kernels.byte_linear.byte_kernels", lambda: None)
    monkeypatch.setattr("specdec.kernels.few_rows.has_onednn", lambda _: True)


def run(model: PreTrainedModel) -> torch.Tensor:
    """Logits of a prefill, a step behind another one, and a tree, all in one pass; then of one more step."""
    runner = ModelRunner(model, VOCAB_SIZE)
    stepped, with_tree = SequenceCache(), SequenceCache()
    runner.forward([Work(stepped, [5, 9, 3], 0), Work(with_tree, [8, 8], 0)])
    tree = Work(with_tree, [1, 2, 3, 4], 4, parents=[-1, -1, 0])
    first = runner.forward([Work(SequenceCache(), [7, 6, 5, 4, 3], 5), Work(stepped, [11], 1), tree])
    return torch.cat([*first, *runner.forward([Work(stepped, [12], 1)])])


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of rows, relative to how much a row's logits differ among each other; the largest."""
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    return float(((found - expected).norm(dim=-1) / spread).max())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_packed_model_computes_nearly_the_same(name: str, kind: type) -> None:
    expected = run(tiny_model(name))
    model = tiny_model(name)
    pack_for_few_rows(model)
    is_packed = any(isinstance(module, kind) for module in model.modules())
    # Sizes that do for one kind of product are odd for the other.
    assert is_packed or name in ("gpt2", "gpt_oss")
    # Layers of experts are of other kinds, and kept; a token that is sent to another expert differs altogether.
    difference = distance(run(model), expected)
    assert 0 < difference < (0.15 if kind is Int8Linear else 0.3)
    assert packed_dtype(model) == ("int8/int8" if kind is ByteLinear and is_packed else "int8/bfloat16")


@pytest.mark.parametrize("name", LLAMAS)
def test_layers_of_the_llama_kind_are_of_few_calls(name: str) -> None:
    model = tiny_model(name)
    pack_for_few_rows(model)
    assert all(type(layer) is FewRowsLayer for layer in model.model.layers)


def test_other_layers_of_the_same_family_keep_theirs() -> None:
    model = tiny_model("llama")
    model.config.hidden_act = "gelu"
    pack_for_few_rows(model)
    assert not any(isinstance(module, FewRowsLayer) for module in model.modules())
    assert any(isinstance(module, Int8Linear | ByteLinear) for module in model.modules())


@torch.no_grad()
def test_weights_that_were_of_4_bits_stay_so(kind: type) -> None:
    """As a GGUF file has them: then nothing but rounded rows is between them and float32."""
    model = tiny_model("llama")
    generator = torch.Generator().manual_seed(0)
    for module in model.model.layers.modules():
        if isinstance(module, torch.nn.Linear) and module.in_features % 32 == 0:
            levels = torch.randint(0, 16, (module.out_features, module.in_features), generator=generator).float()
            levels[:, 0], levels[:, 1] = 0, 15
            module.weight.copy_(levels * 0.125 - 1)
    expected = run(model)
    pack_for_few_rows(model)
    kinds = {type(module) for module in model.model.layers[0].qkv.modules()}
    assert (Int4Linear if kind is Int8Linear else ByteLinear) in kinds
    assert packed_dtype(model) == ("int4/bfloat16" if kind is Int8Linear else "int4/int8")
    assert distance(run(model), expected) < (0.1 if kind is Int8Linear else 0.2)


@pytest.mark.usefixtures("by_pytorch")
def test_a_prefill_is_run_in_bfloat16_and_goes_on_with_packed_weights() -> None:
    text = [(7 * place) % VOCAB_SIZE for place in range(40)]

    def logits(model: PreTrainedModel) -> torch.Tensor:
        runner, cache = ModelRunner(model, VOCAB_SIZE), SequenceCache()
        (many,) = runner.forward([Work(cache, text, 40)])
        (few,) = runner.forward([Work(cache, [5, 6], 2)])
        return torch.cat([many, few])

    expected = logits(tiny_model("llama"))
    model = tiny_model("llama")
    pack_for_few_rows(model)
    assert 0 < distance(logits(model), expected) < 0.15


@pytest.mark.usefixtures("kind")
def test_a_pass_may_ask_for_no_logits() -> None:
    model = tiny_model("llama")
    pack_for_few_rows(model)
    (logits,) = ModelRunner(model, VOCAB_SIZE).forward([Work(SequenceCache(), [1, 2, 3], 0)])
    assert logits.shape == (0, VOCAB_SIZE)


@pytest.mark.usefixtures("by_pytorch")
def test_many_rows_never_meet_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []

    def note(layer: Int8Linear, rows: torch.Tensor) -> torch.Tensor:
        called.append(len(rows))
        return rows.new_zeros((len(rows), layer.out_features))

    monkeypatch.setattr(Int8Linear, "multiply", note)
    model = tiny_model("llama")
    pack_for_few_rows(model)
    text = [(7 * place) % VOCAB_SIZE for place in range(40)]
    ModelRunner(model, VOCAB_SIZE).forward([Work(SequenceCache(), text, 40)])
    assert not called


@pytest.mark.parametrize("name", LLAMAS)
def test_joined_layers_compute_the_same(name: str) -> None:
    expected = run(tiny_model(name))
    model = tiny_model(name)
    assert join_for_few_rows(model)
    assert all(type(layer) is FewRowsLayer for layer in model.model.layers)
    torch.testing.assert_close(run(model), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LLAMAS)
def test_joined_layers_take_kernels_of_their_own(name: str) -> None:
    expected = run(tiny_model(name))
    model = tiny_model(name)
    join_for_few_rows(model)
    give_kernels(model, "invariant")  # for layers of any size
    assert {type(layer.qkv) for layer in model.model.layers} == {RowLinear}
    torch.testing.assert_close(run(model), expected, rtol=1e-4, atol=1e-4)


def test_joined_layers_with_a_bias() -> None:
    joined, plain = (tiny_llama_with(attention_bias=True, mlp_bias=True) for _ in range(2))
    assert join_for_few_rows(joined)
    torch.testing.assert_close(run(joined), run(plain), rtol=1e-4, atol=1e-4)


def test_joined_layers_give_their_hidden_states() -> None:
    def features(model: PreTrainedModel) -> torch.Tensor:
        states = HiddenStates(model)
        states.watch([1, 2])
        work = Work(SequenceCache(), [5, 6, 7], 1, num_features=2, feature_states=(1, 2))
        ModelRunner(model, VOCAB_SIZE, states).forward([work])
        assert work.features is not None
        return work.features.float()

    model = tiny_model("llama")
    join_for_few_rows(model)
    torch.testing.assert_close(features(model), features(tiny_model("llama")), rtol=1e-2, atol=1e-2)


def test_what_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [tiny_model(name) for name in ARCHITECTURES if name not in LLAMAS]
    with_gelu = tiny_model("llama")
    with_gelu.config.hidden_act = "gelu"
    in_bfloat16 = tiny_model("llama")
    in_bfloat16.bfloat16()
    for model in (*others, with_gelu, in_bfloat16):
        assert not join_for_few_rows(model)
        assert not any(isinstance(module, FewRowsLayer) for module in model.modules())
    monkeypatch.setattr("specdec.kernels.few_rows.fused_kernels", lambda: None)
    assert not join_for_few_rows(tiny_model("llama"))

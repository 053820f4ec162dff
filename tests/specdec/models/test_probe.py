from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from specdec.models.errors import ModelError
from specdec.models.probe import probe_ragged_batch
from specdec.runner.attention import ATTENTION_NAME
from specdec.runner.storage import KVStorage
from tests.tiny_models import tiny_llama

VOCAB_SIZE = 300
SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "sliding_window": 64,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def small_model(name: str, *leave_out: str, **changes: Any) -> PreTrainedModel:
    """A seeded model of an architecture, with the ragged attention."""
    config_class = {"PhimoeForCausalLM": "PhimoeConfig", "BertLMHeadModel": "BertConfig"}.get(
        name, name.replace("ForCausalLM", "Config" if name != "Gemma3ForCausalLM" else "TextConfig")
    )
    values = {key: value for key, value in (SMALL | changes).items() if key not in leave_out}
    config = getattr(transformers, config_class)(**values)
    config._attn_implementation = ATTENTION_NAME
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = getattr(transformers, name)(config)
    model.train(mode=False)
    return model


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "MistralForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM", "GPTNeoXForCausalLM"]
)
def test_ragged_batches_of_decoders_are_right(name: str) -> None:
    model = small_model(name)
    probe_ragged_batch(model, VOCAB_SIZE, 128)
    assert model.config._attn_implementation == ATTENTION_NAME


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_reason(dtype: torch.dtype) -> None:
    model = tiny_llama()
    model.to(dtype)  # type: ignore[arg-type]
    probe_ragged_batch(model, 320, 512)


def test_windows_are_as_before() -> None:
    model = small_model("Gemma3ForCausalLM", layer_types=["sliding_attention", "full_attention"])
    probe_ragged_batch(model, VOCAB_SIZE, 128)
    layers: Any = model.model.layers
    assert model.config.sliding_window == 64
    assert [layer.self_attn.sliding_window for layer in layers] == [64, None]


def test_window_that_only_the_mask_knows() -> None:
    model = small_model("PhimoeForCausalLM", "head_dim", num_local_experts=4)
    with pytest.raises(ModelError, match="phimoe computes other values over a ragged batch than alone"):
        probe_ragged_batch(model, VOCAB_SIZE, 128)
    assert model.config.sliding_window == 64
    # No sequence gets as long as the window, so it does not matter.
    probe_ragged_batch(model, VOCAB_SIZE, 64)


def test_model_that_looks_ahead() -> None:
    model = small_model("BertLMHeadModel", "sliding_window", "num_key_value_heads", "head_dim", pad_token_id=0)
    with pytest.raises(ModelError, match="bert computes other values"):
        probe_ragged_batch(model, VOCAB_SIZE, 128)


def test_attention_that_gets_no_batch() -> None:
    model = small_model("NemotronForCausalLM")
    with pytest.raises(
        ModelError, match=r"nemotron cannot be run over a ragged batch \(.*ragged_batch.*\); choose another"
    ):
        probe_ragged_batch(model, VOCAB_SIZE, 128)


def test_values_that_are_not_finite() -> None:
    model = tiny_llama()
    model.lm_head.weight.data[5] = torch.inf
    with pytest.raises(ModelError, match=r"not finite as torch\.float32; choose another dtype"):
        probe_ragged_batch(model, 320, 512)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_that_depend_on_what_was_rejected(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # A cache that is not cut back.
    model = tiny_llama()
    model.to(dtype)  # type: ignore[arg-type]
    monkeypatch.setattr("specdec.runner.cache.SequenceCache.truncate", lambda self, length: None)
    with pytest.raises(ModelError, match="computes other values"):
        probe_ragged_batch(model, 320, 512)


def test_attention_is_ragged_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    failing: Callable[..., Any] = lambda *_, **__: 1 / 0  # noqa: E731
    monkeypatch.setattr(model, "forward", failing)
    with pytest.raises(ModelError, match="division by zero"):
        probe_ragged_batch(model, 320, 512)
    assert model.config._attn_implementation == ATTENTION_NAME


def test_sequences_that_are_attended_to_together_are_probed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a GPU, where slots of other sequences are then read.
    monkeypatch.setattr("specdec.runner.grouped_attention._HOST", torch.device("meta"))
    model = tiny_llama()
    probe_ragged_batch(model, 320, 512)
    gather = KVStorage.gather
    monkeypatch.setattr(KVStorage, "gather", lambda self, layer, slots: gather(self, layer, slots.roll(16)))
    with pytest.raises(ModelError, match="computes other values"):
        probe_ragged_batch(model, 320, 512)

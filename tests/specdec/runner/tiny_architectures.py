"""Tiny seeded models of every kind of attention that is served, with the ragged attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from specdec.runner.attention import ATTENTION_NAME
from specdec.runner.hidden_states import layer_list

VOCAB_SIZE = 96
WINDOW = 6
"""Sliding window of the models that have one: far shorter than the sequences of the tests."""

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
_ALTERNATING = ["sliding_attention", "full_attention"]

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_SHAPE),
    "llama_one_key_head": lambda: LlamaConfig(**{**_SHAPE, "num_key_value_heads": 1}),
    "llama_all_key_heads": lambda: LlamaConfig(**{**_SHAPE, "num_key_value_heads": 4}),
    "qwen3": lambda: Qwen3Config(**_SHAPE, head_dim=16),
    "mistral": lambda: MistralConfig(**_SHAPE, sliding_window=WINDOW),
    "gemma2": lambda: Gemma2Config(
        **_SHAPE,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=_ALTERNATING,
        attn_logit_softcapping=3.0,
        query_pre_attn_scalar=12,
    ),
    "gemma3": lambda: Gemma3TextConfig(**_SHAPE, head_dim=8, sliding_window=WINDOW, layer_types=_ALTERNATING),
    "phi3": lambda: Phi3Config(**_SHAPE),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=256,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    ),
    "gpt_neox": lambda: GPTNeoXConfig(**{**_SHAPE, "num_key_value_heads": None}),
    "gpt_oss": lambda: GptOssConfig(
        **_SHAPE,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=_ALTERNATING,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    ),
}
ARCHITECTURES = tuple(CONFIGS)


def tiny_model(name: str, seed: int = 0, *, layers: int = 2) -> PreTrainedModel:
    """One of `ARCHITECTURES`, float32 on CPU; with more layers than 2 all of them see all tokens."""
    config = CONFIGS[name]()
    if layers != config.num_hidden_layers:
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = ["full_attention"] * layers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=ATTENTION_NAME
        )
        if name == "gpt_oss":
            for layer in model.model.layers:
                torch.nn.init.normal_(layer.self_attn.sinks, std=2.0)
    model.train(mode=False)
    model.requires_grad_(requires_grad=False)
    return model


def tiny_llama_with(**changes: Any) -> PreTrainedModel:
    """The Llama of `ARCHITECTURES` with another config; biases, if it has any, are not zero."""
    config = LlamaConfig(**{**_SHAPE, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=ATTENTION_NAME
        )
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    return model.requires_grad_(requires_grad=False)


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits of one sequence by transformers' own attention, without any cache; (tokens, vocab_size), float32."""
    model.set_attn_implementation("eager")
    try:
        logits: torch.Tensor = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return logits.float()


@torch.inference_mode()
def plain_states(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Those behind every layer, by transformers' own means; (tokens, layers, hidden_size), float32."""
    last: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _arguments: object, output: Any) -> None:
        last.append(output if isinstance(output, torch.Tensor) else output[0])

    number = model.config.num_hidden_layers - 1
    # What transformers gives as the last one is behind the norm.
    hook = model.get_submodule(f"{layer_list(model)}.{number}").register_forward_hook(keep)
    model.set_attn_implementation("eager")
    try:
        output = model(input_ids=torch.tensor([token_ids]), use_cache=False, output_hidden_states=True)
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
        hook.remove()
    return torch.stack([*output.hidden_states[1:-1], last[0]], dim=2)[0].float()

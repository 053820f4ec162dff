"""A model that costs next to nothing and means nothing: it takes the place of a large one on a padded clock.

Written without torch, which the process of a benchmark does not need otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from specdec.tokenizer_files import TokenizerFiles

MAX_LENGTH = 4096
"""Longest sequence of the model, in tokens."""
_WIDTH = 32
_SPREAD = 0.3
"""Standard deviation of the weights: enough that logits are far from ties."""
_END = "<|end|>"
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def save_stand_in(directory: Path) -> Path:
    """Save a Llama of one narrow layer with seeded random weights, whose tokens are bytes and a stop token.

    Args:
        directory: made if need be.
    """
    directory.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([_END, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(_END, special=True, normalized=False)])
    TokenizerFiles(
        tokenizer_json=tokenizer.to_str().encode(), chat_template=_CHAT_TEMPLATE, special_tokens={"eos_token": _END}
    ).save(directory)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": len(vocab),
        "hidden_size": _WIDTH,
        "intermediate_size": _WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": MAX_LENGTH,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": vocab[_END],
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(_weights(len(vocab)), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _weights(vocab_size: int) -> dict[str, NDArray[numpy.float32]]:
    """All of them, by name."""
    generator = numpy.random.default_rng(0)

    def matrix(rows: int) -> NDArray[numpy.float32]:
        return generator.normal(0.0, _SPREAD, (rows, _WIDTH)).astype(numpy.float32)

    norm = numpy.ones(_WIDTH, dtype=numpy.float32)
    layer = "model.layers.0"
    return {
        "model.embed_tokens.weight": matrix(vocab_size),
        **{f"{layer}.self_attn.{name}_proj.weight": matrix(_WIDTH) for name in "qkvo"},
        **{f"{layer}.mlp.{name}_proj.weight": matrix(_WIDTH) for name in ("gate", "up", "down")},
        f"{layer}.input_layernorm.weight": norm,
        f"{layer}.post_attention_layernorm.weight": norm.copy(),
        "model.norm.weight": norm.copy(),
        "lm_head.weight": matrix(vocab_size),
    }

"""Tiny models on disk, in the layouts that users have."""

import json
from pathlib import Path

import gguf
import numpy
import torch
from transformers import LlamaForCausalLM

from tests.tiny_models import tiny_llama, tiny_tokenizer_files


def save_tiny_model(directory: Path, model: LlamaForCausalLM | None = None) -> Path:
    """A model directory with safetensors, config and tokenizer."""
    (model or tiny_llama()).save_pretrained(directory)
    tiny_tokenizer_files().save(directory)
    return directory


def edit_json(path: Path, **changes: object) -> None:
    """Set keys of a JSON object in a file; None removes the key."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def write_tiny_gguf(path: Path, model: LlamaForCausalLM, *, architecture: str = "llama", leave_out: str = "") -> Path:
    """A float32 GGUF file of a Llama with the tiny tokenizer, as llama.cpp's converter writes it."""
    config = model.config
    files = tiny_tokenizer_files(config.vocab_size)
    tokenizer = json.loads(files.tokenizer_json)
    vocab = [token for token, _ in sorted(files.tokenizer().get_vocab().items(), key=lambda item: item[1])]
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads or config.num_attention_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocab)
    writer.add_token_types([3 if token in files.special_tokens.values() else 1 for token in vocab])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(files.chat_template)
    for name, tensor in _gguf_tensors(model).items():
        if name != leave_out:
            writer.add_tensor(name, numpy.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_tensors(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    state = model.state_dict()
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    for layer in range(model.config.num_hidden_layers):
        for name, short in names.items():
            tensor = state[f"model.layers.{layer}.{name}.weight"]
            if short in ("attn_q", "attn_k"):
                heads = model.config.num_attention_heads if short == "attn_q" else model.config.num_key_value_heads
                # llama.cpp rotates neighbouring dimensions, transformers the two halves of a head.
                tensor = tensor.reshape(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
            tensors[f"blk.{layer}.{short}.weight"] = tensor
    return tensors

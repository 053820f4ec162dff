"""A draft model that is never right: the target's tokenizer, random weights."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.models.progress import log_report
from specdec.models.source import provide_model
from specdec.settings import DEFAULT_MODEL
from specdec.tokenizer_files import TokenizerFiles, vocab_size


def save_wrong_draft(directory: Path) -> Path:
    """Save a one-layer Llama with seeded random weights and the embedded target's tokenizer."""
    files = TokenizerFiles.load(provide_model(DEFAULT_MODEL, log_report))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size(files),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    files.save(directory)
    return directory

"""Training runs in test size: a tiny target on disk, and settings under which a run takes seconds."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from draft_service.training.settings import TrainingSettings
from specdec.runner.attention import ATTENTION_NAME
from tests.specdec.models.saved_models import save_tiny_model
from tests.tiny_models import tiny_llama, tiny_llama_config

DRAFT_VOCAB_SIZE = 200


def save_target(directory: Path, *, seed: int = 0, layers: int = 2, tied: bool = False) -> Path:
    """A tiny model directory."""
    directory.mkdir(parents=True)
    return save_tiny_model(directory, tied_llama(seed) if tied else tiny_llama(seed, layers=layers))


def tied_llama(seed: int = 0) -> LlamaForCausalLM:
    """A tiny Llama whose head is its embeddings."""
    config = tiny_llama_config()
    config.tie_word_embeddings = True
    config._attn_implementation = ATTENTION_NAME
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.train(mode=False)
    model.requires_grad_(requires_grad=False)
    return model


def tiny_settings(target: Path, out: Path, **changes: object) -> TrainingSettings:
    """Settings of a run of a few seconds; it ends by its visits, so the hours do not matter."""
    values: dict[str, object] = {
        "target": str(target),
        "out": out,
        "hours": 1,
        "tokens": 8_000,
        "visits": 60_000,
        "device": "cpu",
        "num_sequences": 64,
        "max_answer_tokens": 48,
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "learning_rate": 3e-3,
    }
    return TrainingSettings.model_validate({**values, **changes})

"""Training runs in test size: a tiny target on disk, and settings under which a run takes seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from draft_service.draft_origin import DraftOrigin
from draft_service.state_guess import state_guess
from draft_service.target_tensors import read_embeddings, sha256_of
from draft_service.trained_draft import draft_files
from draft_service.training.least_squares import fit
from draft_service.training.settings import TrainingSettings
from draft_service.training.student import make_student, student_config
from specdec.runner.attention import ATTENTION_NAME
from specdec.tokenizer_files import tokenizer_hash
from tests.draft_service.training.random_samples import random_samples
from tests.specdec.models.saved_models import save_tiny_model
from tests.specdec.runner.tiny_architectures import plain_states
from tests.tiny_models import tiny_llama, tiny_llama_config, tiny_tokenizer_files

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


def lively_student(
    target: PreTrainedModel, layers: Sequence[int], draft_vocab: torch.Tensor, *, num_trained_layers: int = 0
) -> PreTrainedModel:
    """An untrained student that reads the target's states, and guesses in which everything has a say."""
    student = make_student(target, layers, draft_vocab, reads_states=True, num_trained_layers=num_trained_layers)
    guess = state_guess(student)
    assert guess is not None
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in guess.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        guess.scale.fill_(1.5)
    return student


def foreseeing_student(target: PreTrainedModel, draft_vocab: torch.Tensor) -> PreTrainedModel:
    """The upper layer of a tiny target, with the best linear guess of what it reads."""
    student = make_student(target, (1,), draft_vocab, reads_states=True)
    guess, embeddings = state_guess(student), student.get_input_embeddings()
    assert guess is not None
    assert isinstance(embeddings, torch.nn.Embedding)
    samples = []
    for sample in random_samples(100):
        features = plain_states(target, sample.token_ids.tolist()[:-1])[:, :1].bfloat16()
        samples.append(replace(sample, features=features))
    fit(guess, embeddings, samples)
    return student


def save_untrained_draft(target_directory: Path, target: PreTrainedModel, *, reads_states: bool = False) -> Path:
    """A draft of every third token: with both layers of a tiny target, or its upper one that reads states."""
    draft_vocab = torch.arange(0, target.config.vocab_size, 3)
    student = foreseeing_student(target, draft_vocab) if reads_states else make_student(target, (0, 1), draft_vocab)
    return save_draft(target_directory, target, student, (1,) if reads_states else (0, 1), reads_states=reads_states)


def save_draft(
    target_directory: Path,
    target: PreTrainedModel,
    student: PreTrainedModel,
    layers: tuple[int, ...],
    *,
    num_lower: int = 0,
    reads_states: bool = True,
) -> Path:
    """A draft of the first, or every third, token of as many as a student scores."""
    holder: Any = student
    head = holder.get_output_embeddings()
    step = math.ceil(target.config.vocab_size / len(head.weight))
    draft_vocab = torch.arange(0, target.config.vocab_size, step)
    files = tiny_tokenizer_files(target.config.vocab_size)
    embeddings = sha256_of(read_embeddings(target_directory, student))
    features = layers[num_lower : num_lower + 1] if reads_states else ()
    origin = DraftOrigin(str(target_directory), tokenizer_hash(files), embeddings, layers, num_lower, features, seed=0)
    config = student_config(target.config, layers)
    config.tie_word_embeddings = False
    directory = target_directory / "draft"
    directory.mkdir()
    for name, content in draft_files(student, draft_vocab, origin, config, target_directory).items():
        (directory / name).write_bytes(content)
    return directory


def tiny_settings(target: Path, out: Path, **changes: object) -> TrainingSettings:
    """Settings of a run of a few seconds; it ends by its visits, so the hours do not matter."""
    values: dict[str, object] = {
        "target": str(target),
        "out": out,
        "hours": 1,
        "tokens": 8_000,
        "visits": 60_000,
        "device": "cpu",
        "num_sequences": 24,
        "max_answer_tokens": 48,
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "learning_rate": 3e-3,
    }
    return TrainingSettings.model_validate({**values, **changes})

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from draft_service.trained_draft import own_tensors
from draft_service.training.batches import BatchMaker
from draft_service.training.distillation import Closeness, distillation_loss, student_logits
from draft_service.training.samples import Sample
from draft_service.training.student import make_student
from draft_service.training.trainer import Trainer
from specdec.models.errors import ModelError
from tests.draft_service.training.random_samples import random_samples
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

SAMPLES = random_samples(60)
WITH_FEATURES = random_samples(60, num_states=1)


def trainer_in(directory: Path, *, seed: int = 0, reads_states: bool = False) -> Trainer:
    draft_vocab = torch.arange(0, TINY_VOCAB_SIZE, 2)
    maker = BatchMaker(draft_vocab, TINY_VOCAB_SIZE, torch.device("cpu"), batch_tokens=64)
    with torch.random.fork_rng(devices=[]):
        # A run begins with the best linear guess.
        torch.manual_seed(0)
        student = make_student(tiny_llama(), (1,) if reads_states else (0,), draft_vocab, reads_states=reads_states)
    return Trainer(
        student,
        draft_vocab,
        maker,
        dtype=torch.float32,
        num_steps=3,
        learning_rate=1e-2,
        seed=seed,
        directory=directory,
    )


@pytest.mark.parametrize("samples", [SAMPLES, WITH_FEATURES], ids=["tokens", "features"])
def test_the_loss_falls(tmp_path: Path, samples: list[Sample]) -> None:
    trainer = trainer_in(tmp_path, reads_states=samples is WITH_FEATURES)
    losses = [trainer.train_block(samples, 0.0) for _ in range(12)]
    assert losses[-1] < losses[0]
    assert trainer.progress.steps == pytest.approx(12 * 8, abs=30)
    assert trainer.progress.visited_tokens > 1000


def test_the_loss_is_the_mean_of_the_steps_and_counts_later_ones_less(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, reads_states=True)
    (batch, *_) = trainer._batch_maker.batches(WITH_FEATURES)
    with torch.no_grad():
        steps = list(student_logits(trainer.student, batch, torch.float32, 3))
        losses = [float(distillation_loss(logits, batch)) for logits in steps]
        found = float(trainer._loss(batch, 0.9))
    assert len(set(losses)) == 3
    assert found == pytest.approx((losses[0] + 0.8 * losses[1] + 0.64 * losses[2]) / 2.44, rel=1e-5)


@pytest.mark.parametrize("samples", [SAMPLES, WITH_FEATURES], ids=["tokens", "features"])
def test_the_embeddings_stay(tmp_path: Path, samples: list[Sample]) -> None:
    trainer = trainer_in(tmp_path, reads_states=samples is WITH_FEATURES)
    before = copy.deepcopy(trainer.student.state_dict())
    trainer.train_block(samples, 0.0)
    trainer.train_block(samples, 0.0)
    after = trainer.student.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    learnt = {name for name, parameter in trainer.student.named_parameters() if parameter.requires_grad}
    assert changed == learnt
    assert not any("embed" in name for name in learnt)


@pytest.mark.parametrize("samples", [SAMPLES, WITH_FEATURES], ids=["tokens", "features"])
def test_a_resumed_trainer_goes_on_as_the_other_would_have(tmp_path: Path, samples: list[Sample]) -> None:
    reads_states = samples is WITH_FEATURES
    whole = trainer_in(tmp_path / "whole", reads_states=reads_states)
    for block in range(4):
        whole.train_block(samples, block / 4)
    first = trainer_in(tmp_path / "half", reads_states=reads_states)
    assert not first.resume()
    for block in range(2):
        first.train_block(samples, block / 4)
    first.note(Closeness(0.25, 0.3, 2.0, 100, 1.3))
    first.save()
    second = trainer_in(tmp_path / "half", reads_states=reads_states)
    assert second.resume()
    assert second.progress == first.progress
    for block in range(2, 4):
        second.train_block(samples, block / 4)
    expected = own_tensors(whole.student)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in own_tensors(second.student).items())


def test_the_learning_rate_rises_and_falls(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)

    def rate_at(share_done: float) -> float:
        trainer.train_block(SAMPLES, share_done)
        rate: float = trainer._optimizer.param_groups[0]["lr"]
        return rate

    assert rate_at(0.0) < 5e-3
    while trainer.progress.steps < 40:
        trainer.train_block(SAMPLES, 0.0)
    rates = [rate_at(share_done) for share_done in (0.0, 0.1, 0.5, 1.0, 1.7)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(1e-2)
    assert rates[-1] == rates[-2] == pytest.approx(5e-4)


def test_the_best_student_is_kept(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    best = copy.deepcopy(own_tensors(trainer.student))
    trainer.note(Closeness(0.4, 0.3, 2.0, 100, 1.9))
    trainer.train_block(SAMPLES, 0.0)
    # It is the rounds that count, not the first step of each.
    trainer.note(Closeness(0.5, 0.6, 1.0, 100, 1.8))
    assert [entry["agreement"] for entry in trainer.progress.history] == [0.4, 0.5]
    trainer.take_best()
    assert all(torch.equal(tensor, best[name]) for name, tensor in own_tensors(trainer.student).items())


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    trainer.train_block(SAMPLES, 0.0)
    trainer.save()
    path = tmp_path / "checkpoint.safetensors"
    assert any(name.startswith("exp_avg_sq.") for name in load_file(path))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError, match=r"checkpoint.safetensors is damaged; delete it"):
        trainer_in(tmp_path).resume()

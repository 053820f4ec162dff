"""The loss of guessed states, computed one position at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draft_service.state_guess import state_guess
from draft_service.training.batches import BatchMaker
from draft_service.training.distillation import state_loss
from draft_service.training.student import make_student
from draft_service.training.trainer import Trainer
from tests.draft_service.training.random_samples import random_samples
from tests.draft_service.training.running import lively_student
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

CPU = torch.device("cpu")
VOCAB = torch.arange(TINY_VOCAB_SIZE)


def batch_maker() -> BatchMaker:
    return BatchMaker(VOCAB, TINY_VOCAB_SIZE, CPU, 2048)


@pytest.mark.parametrize("num_states", [1, 2], ids=["of tokens", "of lower states"])
@torch.no_grad()
def test_each_step_goes_on_from_the_guess_before(num_states: int) -> None:
    samples = random_samples(7, num_states=num_states)
    # Of one text the first positions are not known, and one state is so large that its distance is bounded.
    forgotten = {samples[2].index: 0.4}
    features = samples[3].features
    assert features is not None
    features[4, -1] = 1e4
    student = lively_student(tiny_llama(), (1,), VOCAB)
    guess = state_guess(student)
    assert guess is not None
    guess.scale.copy_(torch.linspace(0.5, 2.0, 32))
    (batch,) = batch_maker().batches(samples, forgotten)
    assert batch.features is not None
    squares: list[list[torch.Tensor]] = [[], []]
    for token_ids, text in zip(batch.token_ids, batch.features, strict=True):
        lower = text[:, 0] if num_states == 2 else student.get_input_embeddings()(token_ids)
        for position, state in enumerate(text[:, -1]):
            if not state.any():
                continue
            before = text[position - 1, -1] if position else torch.zeros(32)
            squares[0].append((guess(lower[position], before) - state) / guess.scale)
            earlier = text[position - 2, -1] if position > 1 else torch.zeros(32)
            guessed = guess(lower[position - 1], earlier) if position else torch.zeros(32)
            squares[1].append((guess(lower[position], guessed) - state) / guess.scale)
    expected = [float(torch.stack(each).square().clamp(max=25).mean()) for each in squares]
    found = [float(loss) for loss in state_loss(student, batch, torch.float32, 2)]
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_student_that_reads_tokens_has_no_states_to_guess() -> None:
    (batch,) = batch_maker().batches(random_samples(2, num_states=1))
    with pytest.raises(ValueError, match="guesses no states"):
        state_loss(make_student(tiny_llama(), (0,), VOCAB), batch, torch.float32, 1)


@pytest.mark.parametrize(("share_done", "is_of_states"), [(0.0, True), (0.84, True), (0.86, False), (1.0, False)])
def test_states_come_first_and_then_what_they_are_for(tmp_path: Path, share_done: float, is_of_states: bool) -> None:
    student = lively_student(tiny_llama(), (1,), VOCAB)
    trainer = Trainer(
        student,
        VOCAB,
        batch_maker(),
        dtype=torch.float32,
        num_steps=1,
        learning_rate=1e-3,
        seed=0,
        directory=tmp_path,
    )
    (batch,) = batch_maker().batches(random_samples(4, num_states=1))
    (of_states,) = state_loss(student, batch, torch.float32, 1)
    found = float(trainer._loss(batch, share_done).detach())
    assert (found == pytest.approx(float(of_states.detach()))) is is_of_states


def test_a_student_that_reads_tokens_learns_laws_from_the_start_whatever_its_text_has(tmp_path: Path) -> None:
    trainer = Trainer(
        make_student(tiny_llama(), (0,), VOCAB),
        VOCAB,
        batch_maker(),
        dtype=torch.float32,
        num_steps=1,
        learning_rate=1e-3,
        seed=0,
        directory=tmp_path,
    )
    assert trainer.train_block(random_samples(4, num_states=1), 0.0) > 0

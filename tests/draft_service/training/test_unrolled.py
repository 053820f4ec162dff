"""Steps that training looks ahead are those that drafting takes."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import PreTrainedModel

from draft_service.feature_runner import FeatureRunner, FeatureWork
from draft_service.state_guess import state_guess
from draft_service.training.unrolled import ATTENTION_NAME as UNROLLED
from draft_service.training.unrolled import unrolled_logits
from specdec.runner.attention import ATTENTION_NAME
from specdec.runner.cache import SequenceCache
from tests.draft_service.training.running import lively_student
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, VOCAB_SIZE, tiny_model

LENGTH = 17
NUM_STEPS = 5


def student_of(name: str) -> PreTrainedModel:
    return lively_student(tiny_model(name), (0, 1), torch.arange(VOCAB_SIZE))


def texts(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (count, length) and features (count, length, 1, 32), some of them missing."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn((count, LENGTH, 1, 32), generator=generator)
    features[-1, :4] = 0.0
    return torch.randint(VOCAB_SIZE, (count, LENGTH), generator=generator), features


def drafted_logits(
    student: PreTrainedModel, token_ids: torch.Tensor, features: torch.Tensor, num_committed: int, num_steps: int
) -> torch.Tensor:
    """Logits of steps of drafting behind the first tokens of a text, whose next tokens were chosen; (steps, vocab)."""
    guess = state_guess(student)
    assert guess is not None
    runner = FeatureRunner(student, VOCAB_SIZE, guess)
    cache = SequenceCache()
    text = token_ids.tolist()
    states = features[:num_committed, 0].clone()
    # The target has not run the last committed token.
    states[-1] = 0.0
    is_known = states.any(-1)
    # Where the target has told nothing, there is nothing before the next one.
    before = {row: torch.zeros(32) for row in range(1, num_committed) if not is_known[row - 1]}
    work = FeatureWork(cache, text[:num_committed], 1, states=states, is_known=is_known, before=before)
    found = [runner.forward([work])[0][0]]
    for place in range(num_committed, num_committed + num_steps - 1):
        assert work.read is not None
        work = FeatureWork(cache, text[place : place + 1], 1, before={0: work.read[-1]})
        found.append(runner.forward([work])[0][0])
    return torch.stack(found)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_step_at_each_position_is_that_of_drafting_so_far(name: str) -> None:
    student = student_of(name)
    served = copy.deepcopy(student)
    served.set_attn_implementation(ATTENTION_NAME)
    token_ids, features = texts(2)
    guess = state_guess(student)
    assert guess is not None
    rows = torch.arange(2 * LENGTH)
    with torch.no_grad():
        steps = [
            logits.view(2, LENGTH, VOCAB_SIZE)
            for logits in unrolled_logits(student, guess, token_ids, features, rows, NUM_STEPS)
        ]
    assert len(steps) == NUM_STEPS
    spread = steps[0].std()
    for text in range(2):
        for num_committed in (1, 2, 5, 9, LENGTH - NUM_STEPS + 1):
            drafted = drafted_logits(served, token_ids[text], features[text], num_committed, NUM_STEPS)
            for step in range(NUM_STEPS):
                found = steps[step][text, num_committed - 1 + step]
                assert float((found - drafted[step]).abs().max() / spread) < 1e-4, (num_committed, step)
    # A step on a guess from a guess is not one from the target's state.
    assert float((steps[1] - steps[0])[:, 5:].abs().mean() / spread) > 0.1


def test_rows_are_picked_and_the_steps_of_a_text_do_not_depend_on_its_neighbours() -> None:
    student = student_of("llama")
    guess = state_guess(student)
    assert guess is not None
    token_ids, features = texts(3)
    every = torch.arange(3 * LENGTH)
    picked = torch.tensor([2 * LENGTH + 4, 3, LENGTH])
    with torch.no_grad():
        whole = list(unrolled_logits(student, guess, token_ids, features, every, 3))
        some = list(unrolled_logits(student, guess, token_ids, features, picked, 3))
        # Padding on the right is never looked at.
        token_ids[1:, 10:] = 0
        features[1:, 10:] = 9.0
        padded = list(unrolled_logits(student, guess, token_ids, features, every, 3))
    for step in range(3):
        assert torch.allclose(some[step], whole[step][picked], atol=1e-5)
        of_texts = (padded[step].view(3, LENGTH, -1), whole[step].view(3, LENGTH, -1))
        assert torch.allclose(of_texts[0][0], of_texts[1][0], atol=1e-5)
        assert torch.allclose(of_texts[0][1:, :10], of_texts[1][1:, :10], atol=1e-5)


def test_nothing_is_left_on_the_student_even_if_it_is_not_run_to_its_end() -> None:
    student = student_of("llama")
    guess = state_guess(student)
    assert guess is not None
    token_ids, features = texts(1)
    steps = unrolled_logits(student, guess, token_ids, features, torch.arange(4), 4)
    next(steps)
    del steps
    assert not any(module._forward_hooks for module in student.modules())
    # Nor does a step depend on how many follow.
    with torch.no_grad():
        (first, *_) = unrolled_logits(student, guess, token_ids, features, torch.arange(4), 1)
        (again, *_) = unrolled_logits(student, guess, token_ids, features, torch.arange(4), 3)
    assert torch.allclose(first, again, atol=1e-5)


def test_gradients_reach_all_that_has_a_say() -> None:
    student = student_of("qwen3")
    assert student.config._attn_implementation == UNROLLED
    guess = state_guess(student)
    assert guess is not None
    token_ids, features = texts(1)
    *_, logits = unrolled_logits(student, guess, token_ids, features, torch.arange(8), 2)
    # From the second step alone: through a guess to the guess before it.
    logits.square().mean().backward()  # type: ignore[no-untyped-call]
    assert all(
        parameter.grad is not None and bool(parameter.grad.any())
        for parameter in student.parameters()
        if parameter.requires_grad
    )

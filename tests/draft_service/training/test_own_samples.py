from __future__ import annotations

import pytest
import torch

from draft_service.training import own_samples as own_module
from draft_service.training.own_samples import is_own, own_index, write_own_samples
from draft_service.training.samples import NUM_TOP, Sample
from draft_service.training.student import make_student
from specdec.runner.runner import ModelRunner
from tests.draft_service.training.random_samples import random_samples
from tests.specdec.runner.tiny_architectures import plain_logits
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

DRAFT_VOCAB = torch.arange(0, TINY_VOCAB_SIZE, 2)
STOPS = (4, 100)
PROMPTS = [sample for sample in random_samples(12) if not sample.is_held_out]


def write(
    *, seed: int = 0, max_answer_tokens: int = 12, max_length: int = 200, prompts: list[Sample] = PROMPTS
) -> list[Sample]:
    student = make_student(tiny_llama(), (0,), DRAFT_VOCAB)
    return write_own_samples(
        student,
        DRAFT_VOCAB,
        ModelRunner(tiny_llama(), TINY_VOCAB_SIZE),
        prompts,
        stop_token_ids=STOPS,
        max_answer_tokens=max_answer_tokens,
        max_length=max_length,
        seed=seed,
    )


def test_the_draft_answers_the_prompts() -> None:
    for sample, own in zip(PROMPTS, write(), strict=True):
        assert own.index == own_index(sample)
        assert is_own(own)
        assert not is_own(sample)
        assert not own.is_held_out
        start = sample.answer_start
        assert own.answer_start == start
        assert torch.equal(own.token_ids[:start], sample.token_ids[:start])
        answer = own.token_ids[start:].tolist()
        assert 1 <= len(answer) <= 12
        assert all(token % 2 == 0 for token in answer), "only tokens of the draft vocabulary"
        assert not set(answer[:-1]) & set(STOPS)
        assert len(answer) == 12 or answer[-1] in STOPS


@pytest.mark.parametrize("max_logits", [512, 5])
def test_the_laws_are_the_targets(monkeypatch: pytest.MonkeyPatch, max_logits: int) -> None:
    monkeypatch.setattr(own_module, "_MAX_LOGITS", max_logits)
    for own in write():
        text = own.token_ids.tolist()
        assert own.law_positions.tolist() == list(range(own.answer_start, len(text)))
        expected = torch.log_softmax(plain_logits(tiny_llama(), text), -1)[own.answer_start - 1 : -1].topk(NUM_TOP)
        assert torch.equal(own.top_ids.long(), expected.indices)
        assert torch.allclose(own.top_logprobs.float(), expected.values, atol=5e-3)


def test_answers_follow_from_prompt_and_seed() -> None:
    together, alone = write(), [write(prompts=[prompt])[0] for prompt in PROMPTS]
    assert all(torch.equal(left.token_ids, right.token_ids) for left, right in zip(together, alone, strict=True))
    others = write(seed=1)
    assert any(not torch.equal(left.token_ids, right.token_ids) for left, right in zip(together, others, strict=True))


def test_answers_end_with_the_context() -> None:
    assert all(len(own.token_ids) <= max(own.answer_start + 1, 14) for own in write(max_length=14))


def test_the_student_can_be_trained_on() -> None:
    student = make_student(tiny_llama(), (0,), DRAFT_VOCAB)
    before = student.config._attn_implementation
    write_own_samples(
        student,
        DRAFT_VOCAB,
        ModelRunner(tiny_llama(), TINY_VOCAB_SIZE),
        PROMPTS,
        stop_token_ids=STOPS,
        max_answer_tokens=4,
        max_length=99,
        seed=0,
    )
    assert student.config._attn_implementation == before
    student(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert student.model.layers[0].mlp.up_proj.weight.grad is not None

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from draft_service.training.batches import Batch
from draft_service.training.distillation import distillation_loss, measure, student_logits
from draft_service.training.student import make_student
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

TARGET = tiny_llama()


def exact_batch(top: int = TINY_VOCAB_SIZE) -> Batch:
    """Two texts, one padded, with the laws that the target has."""
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(TINY_VOCAB_SIZE, (2, 12), generator=generator)
    rows = torch.tensor([2, 3, 7, 12, 15])
    TARGET.set_attn_implementation("sdpa")
    with torch.no_grad():
        logits = TARGET(input_ids=token_ids).logits.flatten(0, 1)[rows]
    laws = torch.log_softmax(logits, -1).topk(top)
    return Batch(token_ids, rows, laws.indices, laws.values)


def test_the_loss_is_least_where_the_laws_are_equal() -> None:
    batch = exact_batch()
    student = make_student(TARGET, (0, 1), torch.arange(TINY_VOCAB_SIZE))
    (logits,) = student_logits(student, batch, torch.float32)
    logits = logits.detach().requires_grad_()
    loss = distillation_loss(logits, batch)
    entropy = -(batch.logprobs.exp() * batch.logprobs).sum(-1).mean()
    assert math.isclose(float(loss.detach()), float(entropy), rel_tol=1e-5)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert float(gradient.abs().max()) < 1e-6
    assert float(distillation_loss(logits.detach() + torch.randn_like(logits), batch)) > float(entropy) + 0.1


def test_the_gradient_is_that_of_the_divergence_within_the_draft_vocabulary() -> None:
    batch = exact_batch()
    # Odd ids are not in the draft vocabulary.
    known = batch.draft_ids % 2 == 0
    batch = replace(batch, draft_ids=torch.where(known, batch.draft_ids // 2, -1))
    logits = torch.randn((5, TINY_VOCAB_SIZE // 2), requires_grad=True)
    (gradient,) = torch.autograd.grad(distillation_loss(logits, batch), logits)
    target_probs = torch.zeros_like(logits)
    for row in range(5):
        target_probs[row, batch.draft_ids[row][known[row]]] = batch.logprobs[row].exp()[known[row]]
    mass = target_probs.sum(-1, keepdim=True)
    expected = (mass * torch.softmax(logits, -1) - target_probs) / 5
    assert torch.allclose(gradient, expected, atol=1e-6)


def test_the_target_itself_is_as_near_as_can_be() -> None:
    student = make_student(TARGET, (0, 1), torch.arange(TINY_VOCAB_SIZE))
    closeness = measure(student, [exact_batch(), exact_batch()], torch.float32)
    assert closeness.agreement == 1.0
    assert math.isclose(closeness.overlap, 1.0, rel_tol=1e-5)
    assert closeness.num_laws == 10
    assert closeness.mean_acceptance_length == 5.0


def test_measures_against_the_formulas() -> None:
    batch = exact_batch(top=40)
    student = make_student(TARGET, (0,), torch.arange(TINY_VOCAB_SIZE))
    closeness = measure(student, [batch], torch.float32)
    with torch.no_grad():
        (logits,) = student_logits(student, batch, torch.float32)
    draft_probs = torch.softmax(logits, -1)
    agreeing = [int(draft_probs[row].argmax()) == int(batch.draft_ids[row, 0]) for row in range(5)]
    overlaps = [
        sum(
            min(float(draft_probs[row, token]), math.exp(float(logprob)))
            for token, logprob in zip(batch.draft_ids[row].tolist(), batch.logprobs[row], strict=True)
        )
        for row in range(5)
    ]
    assert closeness.agreement == sum(agreeing) / 5
    assert math.isclose(closeness.overlap, sum(overlaps) / 5, rel_tol=1e-5)
    assert 0 < closeness.overlap < 1
    # Its steps do not differ, as it reads tokens alone.
    rate = closeness.agreement
    assert closeness.mean_acceptance_length == pytest.approx(1 + rate + rate**2 + rate**3 + rate**4)


def test_a_token_outside_the_draft_vocabulary_never_agrees() -> None:
    batch = exact_batch()
    batch = replace(batch, draft_ids=torch.full_like(batch.draft_ids, -1))
    student = make_student(TARGET, (0, 1), torch.arange(TINY_VOCAB_SIZE))
    closeness = measure(student, [batch], torch.float32)
    assert closeness.agreement == closeness.overlap == closeness.loss == 0.0


def test_bfloat16_is_near_float32() -> None:
    batch = exact_batch()
    student = make_student(TARGET, (0, 1), torch.arange(TINY_VOCAB_SIZE))
    (exact,), (near,) = (student_logits(student, batch, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert near.dtype == torch.float32
    assert not torch.equal(exact, near)
    assert float((exact - near).detach().abs().mean()) < 0.02 * float(exact.detach().std())
    distillation_loss(near, batch).backward()  # type: ignore[no-untyped-call]
    assert all(
        each.grad is not None and each.grad.dtype == torch.float32
        for each in student.parameters()
        if each.requires_grad
    )

"""What the student learns from the target's laws, and how near it has come."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from draft_service.state_guess import state_guess
from draft_service.training.batches import Batch
from draft_service.training.unrolled import unrolled_logits

NUM_MEASURED_STEPS = 4
_LARGEST_SQUARE = 25.0


def student_logits(
    student: PreTrainedModel, batch: Batch, dtype: torch.dtype, num_steps: int = 1
) -> Iterator[torch.Tensor]:
    """Logits of the draft vocabulary at the laws of a batch; each (laws, draft_vocab_size), float32.

    Args:
        student: in float32.
        batch: of at least one text.
        dtype: arithmetic of its layers, float32 or bfloat16.
        num_steps: how many steps of drafting are looked ahead, one result for each; a student that reads tokens alone
            has only one, as its steps do not differ.
    """
    guess = state_guess(student)
    with torch.autocast(batch.token_ids.device.type, dtype, enabled=dtype != torch.float32):
        if guess is None or batch.features is None:
            output: Any = student(input_ids=batch.token_ids, use_cache=False)
            yield output.logits.flatten(0, 1)[batch.rows].float()
        else:
            for logits in unrolled_logits(student, guess, batch.token_ids, batch.features, batch.rows, num_steps):
                yield logits.float()


def state_loss(student: PreTrainedModel, batch: Batch, dtype: torch.dtype, num_steps: int) -> list[torch.Tensor]:
    """How far a student's guesses are from the target's states, for each step of drafting.

    It costs no pass of the student's layers, and so teaches most of what there is to learn in little time. Squares
    relative to what the state changes by from one position to the next, bounded: some states of a text, its first one
    above all, are of another size.

    Args:
        student: that reads features.
        batch: of texts with features.
        dtype: arithmetic, float32 or bfloat16.
        num_steps: how many steps of drafting are looked ahead.
    """
    guess, features = state_guess(student), batch.features
    if guess is None or features is None:
        raise ValueError("a student that reads tokens alone guesses no states")
    embed: Any = student.get_input_embeddings()
    lower = features[:, :, 0] if features.shape[2] > 1 else embed(batch.token_ids)
    known = features[:, :, -1]
    is_known = known.any(-1)
    losses = []
    before = known
    for _ in range(num_steps):
        before = functional.pad(before, (0, 0, 1, 0))[:, :-1]
        with torch.autocast(known.device.type, dtype, enabled=dtype != torch.float32):
            guessed = guess(lower, before).float()
        distances = ((guessed - known) / guess.scale)[is_known].square().clamp(max=_LARGEST_SQUARE)
        losses.append(distances.mean())
        before = guessed
    return losses


def distillation_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Forward KL of the student's law from the target's most probable tokens, up to a constant; mean over laws.

    Tokens outside the draft vocabulary drop out: the student cannot propose them, so a position counts by the
    probability that is left.

    Args:
        logits: (laws, draft_vocab_size)
        batch: the laws.
    """
    known = batch.draft_ids >= 0
    picked = logits.gather(1, batch.draft_ids.clamp(min=0))
    weights = batch.logprobs.exp() * known
    cross_entropy = weights.sum(-1) * logits.logsumexp(-1) - (weights * picked).sum(-1)
    return cross_entropy.mean()


@dataclass(frozen=True)
class Closeness:
    """How near a student is to the target on texts that it has not seen."""

    agreement: float
    """Share of positions where both have the same most probable token: acceptance at temperature 0."""
    overlap: float
    """Mean of sum(min(target_probs, draft_probs)) at temperature 1: acceptance by the rejection rule."""
    loss: float
    num_laws: int
    mean_acceptance_length: float
    """At temperature 0 with K = 4, if one step's luck were independent of the next one's."""


@torch.no_grad()
def measure(student: PreTrainedModel, batches: Iterable[Batch], dtype: torch.dtype) -> Closeness:
    """Measure a student on at least one batch; `dtype` as for `student_logits`."""
    agreeing: list[float] = [0.0] * NUM_MEASURED_STEPS
    overlap = loss = 0.0
    num_laws = 0
    for batch in batches:
        known = batch.draft_ids >= 0
        # Not zipped: a generator that is left with autocast on would leave it on.
        steps = list(student_logits(student, batch, dtype, NUM_MEASURED_STEPS))
        for step in range(NUM_MEASURED_STEPS):
            agreeing[step] += float((steps[min(step, len(steps) - 1)].argmax(-1) == batch.draft_ids[:, 0]).sum())
        draft_probs = torch.softmax(steps[0], -1).gather(1, batch.draft_ids.clamp(min=0)) * known
        overlap += float(torch.minimum(draft_probs, batch.logprobs.exp()).sum())
        loss += float(distillation_loss(steps[0], batch)) * batch.num_laws
        num_laws += batch.num_laws
    rates = [count / num_laws for count in agreeing]
    length = 1.0 + sum(math.prod(rates[: step + 1]) for step in range(NUM_MEASURED_STEPS))
    return Closeness(rates[0], overlap / num_laws, loss / num_laws, num_laws, length)

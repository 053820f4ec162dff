"""What the student learns from the target's laws, and how near it has come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from draft_service.training.batches import Batch


def student_logits(student: PreTrainedModel, batch: Batch, dtype: torch.dtype) -> torch.Tensor:
    """Logits of the draft vocabulary at the laws of a batch; (laws, draft_vocab_size), float32.

    Args:
        student: in float32.
        batch: of at least one text.
        dtype: arithmetic of its layers, float32 or bfloat16.
    """
    with torch.autocast(batch.token_ids.device.type, dtype, enabled=dtype != torch.float32):
        output: Any = student(input_ids=batch.token_ids, use_cache=False)
    logits: torch.Tensor = output.logits.flatten(0, 1)[batch.rows].float()
    return logits


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


@torch.no_grad()
def measure(student: PreTrainedModel, batches: Iterable[Batch], dtype: torch.dtype) -> Closeness:
    """Measure a student on at least one batch; `dtype` as for `student_logits`."""
    agreeing = overlap = loss = 0.0
    num_laws = 0
    for batch in batches:
        logits = student_logits(student, batch, dtype)
        known = batch.draft_ids >= 0
        draft_probs = torch.softmax(logits, -1).gather(1, batch.draft_ids.clamp(min=0)) * known
        agreeing += float((logits.argmax(-1) == batch.draft_ids[:, 0]).sum())
        overlap += float(torch.minimum(draft_probs, batch.logprobs.exp()).sum())
        loss += float(distillation_loss(logits, batch)) * batch.num_laws
        num_laws += batch.num_laws
    return Closeness(agreeing / num_laws, overlap / num_laws, loss / num_laws, num_laws)

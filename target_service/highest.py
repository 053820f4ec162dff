"""The tokens with the highest logits, of a whole forward pass in one go."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch

from specdec.runner.runner import PassLogits
from specdec.sampling.noise import first_highest_of_rows
from target_service.sequence import PendingRound

_log = logging.getLogger(__name__)


def highest_of_rounds(rounds: Sequence[PendingRound], logits: Sequence[torch.Tensor]) -> list[list[int] | None]:
    """What `Judge.decide` takes as `highest` of each round that ends with a pass.

    One look at all rows costs little more than one at a single row; on a GPU, where each is a way to the host and back,
    no more at all. So it is taken where two rounds are decided by nothing else; what decides the others is found for each
    by itself. Where the look fails, or finds a row without numbers, each round is looked at by itself, and only those
    fail that this fails for.

    Args:
        rounds: those that end, in the order of their logits.
        logits: of the pass, as `ModelRunner.forward` gives them.
    """
    nothing: list[list[int] | None] = [None] * len(rounds)
    num_plain = sum(pending.sequence.judge.is_plain for pending in rounds)
    if not isinstance(logits, PassLogits) or num_plain < min(2, len(rounds)):
        return nothing
    try:
        tokens, values = first_highest_of_rows(logits.rows)
    except Exception:  # noqa: BLE001 - a device tells here, on the first way to the host, what has gone wrong before
        _log.exception("the logits of a pass could not be looked at together")
        return nothing
    if not all(map(math.isfinite, values)):
        return nothing
    parts: list[list[int] | None] = []
    start = 0
    for pending in rounds:
        end = start + pending.num_window_rows + 1
        parts.append(tokens[start:end])
        start = end
    return parts

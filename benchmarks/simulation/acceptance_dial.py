"""A drafter that is right as often as is wanted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch


class AcceptanceDial:
    """Makes a drafter that knows the target wrong now and then: strikes out the most probable token of a draft step.

    With the target's own weights as drafter, at temperature 0, each draft token is then right with the probability
    given, independently of all others. Above temperature 0 the noise decides as well, and acceptance is higher.

    Args:
        acceptance: probability that a draft token is right.
        seed: of the draws.
    """

    def __init__(self, acceptance: float, seed: int = 0) -> None:
        self._acceptance = acceptance
        self._random = random.Random(seed)

    @torch.inference_mode()
    def turn(self, logits: Sequence[torch.Tensor]) -> None:
        """Change logits in place; each (rows, vocab_size): a row for each draft token that is made of it, if any."""
        rows = [row for piece in logits for row in piece if self._random.random() >= self._acceptance]
        if rows:
            for row, best in zip(rows, torch.stack(rows).argmax(-1).tolist(), strict=True):
                row[best] = -torch.inf

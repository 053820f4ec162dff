"""What a student that reads features begins with: the best linear guess of the target's states.

It is fitted to the first texts in closed form. With 14 upper and 2 lower layers of SmolLM2-135M around it, it finds
72 % of the target's most probable tokens before the first training step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from draft_service.state_guess import StateGuess, unit_scale
from draft_service.training.samples import Sample

_RIDGE = 0.01
"""Penalty, relative to each input's own power."""


@torch.no_grad()
def fit(guess: StateGuess, embeddings: nn.Embedding, samples: Sequence[Sample]) -> None:
    """Set the linear part of a guess by least squares, and have its gated part add nothing.

    Args:
        guess: of the student.
        embeddings: of the target.
        samples: texts with features, at least one of more than two tokens.
    """
    size = len(guess.scale)
    width = 2 * size + 1
    # Sums of products over all positions, in float64: they are of very different sizes.
    powers = torch.zeros((width, width), dtype=torch.float64)
    products = torch.zeros((width, size), dtype=torch.float64)
    squares = torch.zeros(size, dtype=torch.float64)
    count = 0
    for lower, before, states in _positions(embeddings, samples):
        known = torch.cat([unit_scale(lower), unit_scale(before), torch.ones((len(lower), 1))], 1)
        powers += (known.T @ known).double()
        products += (known.T @ states).double()
        squares += (states - before).square().sum(0).double()
        count += len(states)
    scale = (squares / count).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    penalty = torch.diag(_RIDGE * powers.diag().clamp(min=torch.finfo(torch.float32).tiny))
    weights: torch.Tensor = torch.linalg.solve(powers + penalty, products / scale)
    guess.scale.copy_(scale)
    guess.known.weight[:size] = weights[:-1].T.to(guess.known.weight)
    guess.known.bias.zero_()
    guess.known.bias[:size] = weights[-1].to(guess.known.bias)
    guess.down.weight.zero_()


def _positions(
    embeddings: nn.Embedding, samples: Sequence[Sample]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Of each text what a guess reads, and what it should say: lower, before and state, each (rows, hidden_size)."""
    for sample in samples:
        if sample.features is None or len(sample.features) < 2:
            continue
        features = sample.features.float()
        if features.shape[1] > 1:
            lower = features[1:, 0]
        else:
            token_ids = sample.token_ids[1 : len(features)].long().to(embeddings.weight.device)
            lower = embeddings(token_ids).cpu().float()
        yield lower, features[:-1, -1], features[1:, -1]

"""What a student that reads features begins with: the best linear guess of what the target has in mind next.

The guess is fitted to the first texts in closed form. Of SmolLM2-135M it finds a third of the target's most probable
tokens before the first training step, which takes a student of four layers without features some 400,000 tokens of
training.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from draft_service.feature_input import FeatureInput
from draft_service.training.samples import Sample
from specdec.runner.hidden_states import unit_scale

_RIDGE = 0.01
"""Penalty, relative to each input's own power."""


@torch.no_grad()
def fit(inputs: FeatureInput, embeddings: nn.Embedding, samples: Sequence[Sample]) -> None:
    """Set the values of a student's input so that it gives the last state of the features that come next.

    Args:
        inputs: of the student.
        embeddings: of the target.
        samples: texts with features, at least one.
    """
    size, device = inputs.hidden_size, inputs.token.weight.device
    width = size + inputs.num_states * size + 1
    # Sums of products over all positions, in float64: they are of very different sizes.
    powers = torch.zeros((width, width), dtype=torch.float64)
    products = torch.zeros((width, size), dtype=torch.float64)
    for sample in samples:
        if sample.features is None or len(sample.features) < 2:
            continue
        features = sample.features.float()
        tokens = sample.token_ids[1 : len(features)].long().to(device)
        known = torch.cat(
            [unit_scale(embeddings(tokens)).cpu(), features[:-1].flatten(1), torch.ones((len(tokens), 1))], 1
        )
        powers += (known.T @ known).double()
        products += (known.T @ features[1:, -1]).double()
    every = torch.arange(width)
    weights = _solve(powers, products, every)
    inputs.token.weight.copy_(weights[:size].T)
    inputs.token.bias.copy_(weights[-1])
    inputs.target.weight.copy_(weights[size:-1].T)
    # The draft's own state stands for the last of the target's, and has to do without the others.
    without = torch.cat([every[:size], every[-1 - size :]])
    inputs.own.weight.copy_(_solve(powers, products, without)[size:-1].T)


def _solve(powers: torch.Tensor, products: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Weights of some inputs; (inputs, hidden_size)."""
    square = powers[columns][:, columns]
    penalty = torch.diag(_RIDGE * square.diag().clamp(min=torch.finfo(torch.float32).tiny))
    weights: torch.Tensor = torch.linalg.solve(square + penalty, products[columns])
    return weights

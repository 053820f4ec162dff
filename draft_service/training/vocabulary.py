"""Which tokens a draft can propose: those that the target gives most of its probability."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from draft_service.training.samples import Sample


def token_mass(samples: Iterable[Sample], vocab_size: int) -> torch.Tensor:
    """Probability that the target's laws give each token, summed over all positions; (vocab_size,), float64."""
    mass = torch.zeros(vocab_size, dtype=torch.float64)
    for sample in samples:
        mass.index_add_(0, sample.top_ids.flatten().long(), sample.top_logprobs.flatten().double().exp())
    return mass


def choose_draft_vocab(mass: torch.Tensor, size: int, always: Sequence[int]) -> torch.Tensor:
    """The token ids with the largest mass.

    Args:
        mass: (vocab_size,)
        size: how many ids; all of them if there are fewer.
        always: ids that are in whatever their mass, such as those that end an answer.

    Returns:
        (size,), int64, increasing.
    """
    ranked = mass.clone()
    ranked[list(always)] = torch.inf
    # Stable, so that ids of equal mass are taken in their order on every machine.
    chosen = ranked.sort(descending=True, stable=True).indices[:size]
    return chosen.sort().values

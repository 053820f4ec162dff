"""Which tokens a draft can propose: those that the target gives most of its probability."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from draft_service.training.samples import Sample
from draft_service.training.storage import storage_errors, write_whole
from specdec.models.errors import ModelError


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


def kept_draft_vocab(path: Path, choose: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The draft vocabulary of a run: chosen once, from the text that there is then, and kept in a file.

    Raises:
        ModelError: the file is damaged, or there is no room for it.
    """
    if not path.exists():
        write_whole(path, save({"draft_vocab": choose()}))
    try:
        with storage_errors(path.parent):
            return load(path.read_bytes())["draft_vocab"]
    except (SafetensorError, KeyError) as error:
        raise ModelError(f"{path} is damaged; give another --out to begin anew") from error

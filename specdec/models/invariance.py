"""Having a row of a model give the same bits in any batch, and making sure that it does."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from specdec.models.errors import ModelError
from specdec.runner.cache import SequenceCache
from specdec.runner.row_attention import ROW_ATTENTION_NAME
from specdec.runner.runner import ModelRunner, Work

_NUM_TOKENS = 24
_CUTS = ([1] * _NUM_TOKENS, [_NUM_TOKENS], [3, 5, 2, 9, 5])
"""Ways to run the same tokens; rows of a pass."""


def make_invariant(model: PreTrainedModel, vocab_size: int) -> None:
    """Compute attention row by row, and check that the whole model is invariant.

    Linear layers sum in one order (`give_kernels`), attention is a call for each row, and what is left works element by
    element. That it gives the same for an element anywhere is PyTorch's doing, and holds where the width of every layer
    is a multiple of twice the vector width; so it is tried and not assumed.

    Args:
        model: on CPU, with `invariant` kernels.
        vocab_size: true size of the vocabulary.

    Raises:
        ModelError: rows depend on the batch.
    """
    model.set_attn_implementation(ROW_ATTENTION_NAME)
    runner = ModelRunner(model, vocab_size)
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(vocab_size, (_NUM_TOKENS,), generator=generator).tolist()
    first, *others = (_logits(runner, token_ids, cut) for cut in _CUTS)
    if not all(torch.equal(first, other) for other in others):
        raise ModelError(
            f"{model.config.model_type} gives other bits for the same row in another batch, whatever the kernels, with "
            f"{torch.get_num_threads()} threads; choose --linear-kernel auto, or another number of threads"
        )


def _logits(runner: ModelRunner, token_ids: list[int], cut: list[int]) -> torch.Tensor:
    cache = SequenceCache()
    logits = []
    for count in cut:
        start = cache.length
        logits += runner.forward([Work(cache, token_ids[start : start + count], count)])
    return torch.cat(logits)

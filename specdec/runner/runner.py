"""One forward pass for everything that is ready: prefill chunks, decode steps and windows of many sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from specdec.runner.attention import RaggedBatch, Segment, row_depths
from specdec.runner.cache import SequenceCache


@dataclass(slots=True)
class Work:
    """New tokens of one sequence to be run, continuing its cache."""

    cache: SequenceCache
    token_ids: Sequence[int]
    num_logits: int
    """How many of the last rows need logits; 0 for a prefill chunk that is not the last."""
    parents: list[int] | None = None
    """See `Segment.parents`."""


class ModelRunner:
    """Runs a causal language model over ragged batches.

    Args:
        model: loaded with `attn_implementation=ATTENTION_NAME`.
        vocab_size: true size of the vocabulary; padding rows of the checkpoint are cut off the logits.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size

    @torch.inference_mode()
    def forward(self, batch: Sequence[Work]) -> list[torch.Tensor]:
        """Run the new tokens of all sequences at once and move every cache past them.

        Args:
            batch: at least one piece of work, each with at least one token and a cache of its own.

        Returns:
            For each piece, the logits of its last `num_logits` rows; (num_logits, vocab_size), float32.

        Raises:
            MemoryError: the pool of a cache has no blocks for its rows; callers that share a pool prepare them first.
        """
        device = self._model.device
        token_ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        segments = []
        for work in batch:
            num_rows = len(work.token_ids)
            first = work.cache.length
            if not work.cache.prepare(num_rows):
                raise MemoryError("the key-value pool has no blocks for the rows of this pass")
            token_ids.extend(work.token_ids)
            if work.parents is None:
                positions.extend(range(first, first + num_rows))
            else:
                positions.extend(first + depth for depth in row_depths(num_rows, work.parents))
            wanted.extend(range(len(token_ids) - work.num_logits, len(token_ids)))
            segments.append(Segment(work.cache, num_rows, work.parents))
        output = self._model(
            input_ids=torch.tensor([token_ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
            ragged_batch=RaggedBatch(segments, device),
            logits_to_keep=torch.tensor(wanted, dtype=torch.long, device=device),
        )
        logits = output.logits[0, :, : self._vocab_size].float()
        for work in batch:
            work.cache.length += len(work.token_ids)
        return list(logits.split([work.num_logits for work in batch]))

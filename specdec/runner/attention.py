"""Attention over a ragged batch, as an attention implementation of transformers.

The new tokens of all sequences lie side by side in one row of the batch. Everything else in a decoder works token by
token; only attention must know where one sequence ends and the next begins. So this function is all that a model needs
to serve many sequences of different lengths in one pass, without padding and without a change to the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import AttentionInterface

from specdec.runner.grouped_attention import Division
from specdec.runner.integers import Integers
from specdec.runner.segment import Segment
from specdec.runner.storage import KVStorage
from specdec.runner.weighted_values import weighted_values

ATTENTION_NAME = "specdec_ragged"
"""Name to load a model with: `from_pretrained(..., attn_implementation=ATTENTION_NAME)`."""


class RaggedBatch:
    """What the attention must know of a batch.

    Args:
        segments: the sequences, in the order of their rows; their caches are prepared for the new rows.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self._writes: list[tuple[KVStorage, slice, Integers]] = []
        self._division: Division | None = None
        start = end = 0
        slots: list[int] = []
        for index, segment in enumerate(segments):
            storage = segment.cache.pool.storage
            slots += segment.new_slots
            end += segment.num_rows
            # One write for all that lie in one storage.
            if index + 1 == len(segments) or segments[index + 1].cache.pool.storage is not storage:
                self._writes.append((storage, slice(start, end), Integers(np.array(slots))))
                start, slots = end, []

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put the new rows of one layer behind the valid ones of their sequences.

        Args:
            layer: index of the layer.
            key: (kv_heads, rows, head_dim), the rows of all segments side by side.
            value: (kv_heads, rows, head_dim)
        """
        if len(self._writes) == 1:
            storage, _, slots = self._writes[0]
            storage.write(layer, key, value, slots.on(key.device)[0])
            return
        for storage, rows, slots in self._writes:
            storage.write(layer, key[:, rows], value[:, rows], slots.on(key.device)[0])

    def write_heads(self, layer: int, heads: torch.Tensor) -> None:
        """As `write`, of keys and values in one tensor: (2 * kv_heads, rows, head_dim)."""
        for storage, rows, slots in self._writes:
            storage.write_heads(layer, heads[:, rows], slots.on(heads.device)[0])

    def write_states(self, number: int, states: torch.Tensor) -> None:
        """Keep a hidden state of all rows, (rows, hidden_size), beside their keys and values."""
        for storage, rows, slots in self._writes:
            storage.write_states(number, states[rows], slots.on(states.device)[0])

    def division(self, layer: int, query: torch.Tensor) -> Division:
        """Which segments are attended to together; the first layer that asks, once it is written, decides.

        Args:
            layer: its index.
            query: (heads, rows, head_dim)
        """
        if self._division is None:
            self._division = Division(self.segments, layer, len(query), query.device)
        return self._division


def ragged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    ragged_batch: RaggedBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention of each segment's rows over its own cache; writes the new keys and values into it.

    Args:
        module: the attention layer; `layer_idx` names its slot in the caches.
        query: (1, heads, rows, head_dim), the rows of all segments side by side.
        key: (1, kv_heads, rows, head_dim)
        value: (1, kv_heads, rows, head_dim)
        attention_mask: not used; who sees whom follows from `ragged_batch`.
        ragged_batch: the sequences.
        scaling: factor on the scores; None is 1 / sqrt(head_dim).
        sliding_window: a row sees this many tokens, itself included; None sees all.
        softcap: bound on the scores, `softcap * tanh(score / softcap)` (Gemma 2).
        s_aux: one extra score for each head that takes part in the softmax and carries no value (gpt-oss).

    Returns:
        (1, rows, heads, head_dim) and no weights, as transformers expects.
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    ragged_batch.write(layer, key[0], value[0])
    whole = attend(layer, query[0], key.shape[1], ragged_batch, scaling, sliding_window, softcap, s_aux)
    # Contiguous: some models take a view of it.
    return whole[None].contiguous(), None


def attend(
    layer: int,
    query: torch.Tensor,
    kv_heads: int,
    batch: RaggedBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `ragged_attention`, on keys and values that are written already.

    Args:
        layer: index of the layer.
        query: (heads, rows, head_dim), the rows of all segments side by side.
        kv_heads: heads of keys and values.
        batch: the sequences.
        scaling: see `ragged_attention`, as all that follows.

    Returns:
        (rows, heads, head_dim)
    """
    division = batch.division(layer, query)
    parts = [group.attend(layer, query, kv_heads, scaling, sliding_window, softcap, s_aux) for group in division.groups]
    heads = query.shape[0]
    groups = heads // kv_heads
    for first, segment in division.alone:
        keys, values = segment.read(layer)
        rows = query[:, first : first + segment.num_rows].reshape(kv_heads, 1, groups * segment.num_rows, -1)
        mask = segment.mask(sliding_window, query.device)
        if mask is not None and groups > 1:
            mask = mask.repeat(groups, 1)
        out = weighted_values(rows, keys[:, None], values[:, None], mask, scaling, softcap, s_aux)
        parts.append(out.reshape(heads, segment.num_rows, -1).transpose(0, 1))
    return division.in_order(parts)


AttentionInterface.register(ATTENTION_NAME, ragged_attention)

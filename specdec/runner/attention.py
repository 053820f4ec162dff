"""Attention over a ragged batch, as an attention implementation of transformers.

The new tokens of all sequences lie side by side in one row of the batch. Everything else in a decoder works token by
token; only attention must know where one sequence ends and the next begins. So this function is all that a model needs
to serve many sequences of different lengths in one pass, without padding and without a change to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional
from transformers import AttentionInterface

from specdec.runner.cache import SequenceCache
from specdec.runner.storage import KVStorage

ATTENTION_NAME = "specdec_ragged"
"""Name to load a model with: `from_pretrained(..., attn_implementation=ATTENTION_NAME)`."""


@dataclass(slots=True)
class Segment:
    """The new tokens of one sequence in a batch."""

    cache: SequenceCache
    num_rows: int
    parents: list[int] | None = None
    """Of a token tree: for each of the last `len(parents)` rows, the row it follows (counted among them), or -1 for the
    row before the tree. Those may be more than the new rows: the first ones are in the cache already. None: a chain."""
    spans: list[tuple[int, int]] = field(init=False)
    """Where its tokens are, cached and new."""
    _masks: dict[tuple[int | None, torch.device], torch.Tensor | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spans = self.cache.spans(self.cache.length + self.num_rows)

    @property
    def new_slots(self) -> Sequence[int]:
        """Slots of the new rows."""
        start, end = self.spans[-1]
        if end - start >= self.num_rows:
            return range(end - self.num_rows, end)
        length = self.cache.length
        return self.cache.slots(length, length + self.num_rows)

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of one layer up to the new rows, once those are written.

        Each is (kv_heads, length + rows, head_dim).
        """
        return self.cache.pool.storage.read(layer, self.spans)

    def mask(self, sliding_window: int | None, device: torch.device) -> torch.Tensor | None:
        """Which of the cached and new tokens each new row sees; (rows, length + rows) of bool, or None for all."""
        key = sliding_window, device
        if key not in self._masks:
            self._masks[key] = _build_mask(self.cache.length, self.num_rows, self.parents, sliding_window, device)
        return self._masks[key]


class RaggedBatch:
    """What the attention must know of a batch.

    Args:
        segments: the sequences, in the order of their rows; their caches are prepared for the new rows.
        device: of the model's first layer; others may be elsewhere.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self.segments = segments
        self._writes: list[tuple[KVStorage, slice, dict[torch.device, torch.Tensor]]] = []
        start = end = 0
        slots: list[int] = []
        for index, segment in enumerate(segments):
            storage = segment.cache.pool.storage
            slots += segment.new_slots
            end += segment.num_rows
            # One write for all that lie in one storage.
            if index + 1 == len(segments) or segments[index + 1].cache.pool.storage is not storage:
                self._writes.append((storage, slice(start, end), {device: integers(slots).to(device)}))
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
            storage.write(layer, key, value, _slots_on(key.device, slots))
            return
        for storage, rows, slots in self._writes:
            storage.write(layer, key[:, rows], value[:, rows], _slots_on(key.device, slots))

    def write_heads(self, layer: int, heads: torch.Tensor) -> None:
        """As `write`, of keys and values in one tensor: (2 * kv_heads, rows, head_dim)."""
        for storage, rows, slots in self._writes:
            storage.write_heads(layer, heads[:, rows], _slots_on(heads.device, slots))

    def write_states(self, number: int, states: torch.Tensor) -> None:
        """Keep a hidden state of all rows, (rows, hidden_size), beside their keys and values."""
        for storage, rows, slots in self._writes:
            storage.write_states(number, states[rows], _slots_on(states.device, slots))


def integers(numbers: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
    """A tensor of whole numbers, int64, on the CPU; by NumPy, which takes a seventh of the time that PyTorch does."""
    return torch.from_numpy(np.array(numbers, dtype=np.int64))


def _slots_on(device: torch.device, slots: dict[torch.device, torch.Tensor]) -> torch.Tensor:
    """Slots where a layer is; copied there once a pass."""
    held = slots.get(device)
    if held is None:
        held = slots[device] = next(iter(slots.values())).to(device)
    return held


def row_depths(num_rows: int, parents: list[int] | None) -> list[int]:
    """Position of each new row, relative to the end of the cache: in a tree, siblings share one."""
    if not parents:
        return list(range(num_rows))
    first = num_rows - len(parents)
    return [*range(first), *_node_depths(parents, first)][-num_rows:]


def _node_depths(parents: list[int], first: int) -> list[int]:
    """Position of each node of a tree whose roots are at `first`."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else first)
    return depths


def _build_mask(
    length: int, num_rows: int, parents: list[int] | None, sliding_window: int | None, device: torch.device
) -> torch.Tensor | None:
    total = length + num_rows
    if num_rows == 1 and not parents and (sliding_window is None or total <= sliding_window):
        return None
    columns = torch.arange(total, device=device)
    mask = columns[None, :] <= columns[length:, None]
    positions = columns
    if parents:
        start = total - len(parents)
        paths: list[list[int]] = []
        for node, parent in enumerate(parents):
            # A node sees what its parent sees, and itself.
            paths.append([*(paths[parent] if parent >= 0 else ()), start + node])
        first_row = max(0, start - length)
        mask[first_row:, start:] = False
        seen = [(row, column) for row in range(first_row, num_rows) for column in paths[length + row - start]]
        rows, seen_columns = torch.tensor(seen, device=device).unbind(1)
        mask[rows, seen_columns] = True
        positions = torch.cat([columns[:start], torch.tensor(_node_depths(parents, start), device=device)])
    if sliding_window is not None:
        mask &= positions[None, :] > (positions[length:] - sliding_window)[:, None]
    return mask


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
    heads = query.shape[0]
    groups = heads // kv_heads
    outputs = []
    start = 0
    for segment in batch.segments:
        end = start + segment.num_rows
        keys, values = segment.read(layer)
        # The query heads that share a key head become further rows of that head: nothing is repeated in memory.
        rows = query[:, start:end].reshape(kv_heads, groups * segment.num_rows, -1)
        mask = segment.mask(sliding_window, query.device)
        if mask is not None and groups > 1:
            mask = mask.repeat(groups, 1)
        if softcap is None and s_aux is None:
            out = functional.scaled_dot_product_attention(
                rows[None], keys[None], values[None], attn_mask=mask, scale=scaling
            )[0]
        else:
            out = _explicit_attention(rows, keys, values, mask, scaling, softcap, s_aux)
        outputs.append(out.reshape(heads, segment.num_rows, -1))
        start = end
    whole = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return whole.transpose(0, 1)


def _explicit_attention(
    rows: torch.Tensor,  # (kv_heads, groups * rows, head_dim)
    keys: torch.Tensor,  # (kv_heads, tokens, head_dim)
    values: torch.Tensor,  # (kv_heads, tokens, head_dim)
    mask: torch.Tensor | None,  # (groups * rows, tokens)
    scaling: float | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,  # (heads,)
) -> torch.Tensor:
    """For the score functions that the fused kernel does not have."""
    scores = rows @ keys.transpose(1, 2) * (rows.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if s_aux is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype) @ values
    kv_heads, grouped_rows, _ = scores.shape
    groups = s_aux.numel() // kv_heads
    sinks = s_aux.reshape(kv_heads, groups, 1).expand(-1, -1, grouped_rows // groups).reshape(kv_heads, grouped_rows, 1)
    weights = torch.softmax(torch.cat([scores, sinks.to(scores.dtype)], dim=-1), dim=-1, dtype=torch.float32)
    return weights[..., :-1].to(values.dtype) @ values


AttentionInterface.register(ATTENTION_NAME, ragged_attention)

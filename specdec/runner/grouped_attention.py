"""Attention of many sequences in one call, where calls cost more than copies.

A GPU takes microseconds for the attention of a few rows, and as long for being told to begin. So the keys and values of
sequences with few rows are gathered side by side, padded to one length, and all of them are one call.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from specdec.runner.integers import Integers
from specdec.runner.segment import Segment
from specdec.runner.storage import KVStorage
from specdec.runner.visibility import Visibility
from specdec.runner.weighted_values import weighted_values

_HOST = torch.device("cpu")
"""Where calls are cheap, and slots side by side are read as a view (docs/adr/0005). Pretended CPUs have a number."""
_MOST_ROWS = 32
"""Of a sequence in a group. More of them, of a prefill, keep a device busy by themselves."""
_PADDED_ANYWAY = 256
"""Tokens that sequences may be padded to though they are less than half as long: so few cost nothing."""
_MULTIPLE = 16
"""Of tokens, for kernels that want masks with rows of so many bytes."""
_MOST_BYTES = 256 << 20
"""Of keys, values and scores of a group in one layer: memory that must be free beside the model and the pool."""
_MOST_BYTES_OF_ONE = 16 << 20
"""Of keys and values of a sequence in one layer. To copy more takes longer than a call."""

_Indices = tuple[torch.Tensor, ...]


class Group:
    """Sequences in one storage, attended to in one call; what does not depend on the layer is made once a pass.

    Args:
        segments: by the index of their first row in the batch, in order.
    """

    def __init__(self, segments: Sequence[tuple[int, Segment]]) -> None:
        firsts = np.array([first for first, _ in segments])[:, None]
        counts = np.array([segment.num_rows for _, segment in segments])[:, None]
        num_rows, num_tokens = int(counts.max()), _padded(max(segment.num_tokens for _, segment in segments))
        self._num_rows, self._num_tokens = num_rows, num_tokens
        self._storage = segments[0][1].cache.pool.storage
        # What is too many stands at the last one: a sequence never meets what others left in a slot, numbers or none.
        rows = np.minimum(np.arange(num_rows), counts - 1)
        own = np.arange(num_rows) < counts
        self.rows = (firsts + rows)[own]
        """Indices in the batch of the rows of its sequences, in order."""
        self._numbers = Integers(_slots([each for _, each in segments], num_tokens), firsts + rows, *own.nonzero())
        self._visibility = Visibility(
            [(each.cache.length, each.num_rows, each.parents) for _, each in segments], num_rows, num_tokens
        )
        self._places: dict[tuple[torch.device, int, int], tuple[_Indices, _Indices]] = {}
        self._masks: dict[tuple[torch.device, torch.dtype, int | None, int], torch.Tensor] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        kv_heads: int,
        scaling: float | None,
        sliding_window: int | None,
        softcap: float | None,
        s_aux: torch.Tensor | None,
    ) -> torch.Tensor:
        """As `attention.attend`, of the rows of its sequences: (rows, heads, head_dim)."""
        heads, groups = len(query), len(query) // kv_heads
        slots, *_ = self._numbers.on(query.device)
        num_sequences = len(slots)
        into, out_of = self._places_of(query.device, groups, kv_heads)
        keys, values = self._storage.gather(layer, slots.view(-1))
        out = weighted_values(
            query[into].view(kv_heads, num_sequences, groups * self._num_rows, -1),
            keys.view(kv_heads, num_sequences, self._num_tokens, -1),
            values.view(kv_heads, num_sequences, self._num_tokens, -1),
            self._mask(query, groups, sliding_window),
            scaling,
            softcap,
            s_aux,
        )
        return out[out_of].view(-1, heads, out.shape[-1])

    def _places_of(self, device: torch.device, groups: int, kv_heads: int) -> tuple[_Indices, _Indices]:
        """Indices that put heads of rows where attention wants them, and that find those of real rows in its result.

        The former are (kv_heads, sequences, groups, rows), the latter (rows, kv_heads, groups), all in full: what they
        pick is laid out as they are, whatever the layout that it is picked from.
        """
        key = device, groups, kv_heads
        if key not in self._places:
            _, rows, sequence, row = self._numbers.on(device)
            key_head = torch.arange(kv_heads, device=device)
            group = torch.arange(groups, device=device)
            into = (key_head[:, None, None, None] * groups + group[:, None], rows[:, None])
            out_of = (key_head[:, None], sequence[:, None, None], group * self._num_rows + row[:, None, None])
            shape = kv_heads, len(rows), groups, self._num_rows
            self._places[key] = (
                tuple(each.expand(shape).contiguous() for each in into),
                tuple(each.expand(len(row), kv_heads, groups).contiguous() for each in out_of),
            )
        return self._places[key]

    def _mask(self, query: torch.Tensor, groups: int, sliding_window: int | None) -> torch.Tensor:
        """What is added to scores, (1, sequences, groups * rows, tokens); of a bool it would be made in each layer."""
        key = query.device, query.dtype, sliding_window, groups
        if key not in self._masks:
            seen = self._visibility.mask(sliding_window, query.device)
            added = torch.zeros_like(seen, dtype=query.dtype).masked_fill_(~seen, -torch.inf)
            self._masks[key] = added.repeat(1, groups, 1)[None]
        return self._masks[key]


class Division:
    """The segments of a pass: those that are attended to together, and those that are alone.

    Args:
        segments: in the order of their rows.
        layer: index of a layer whose new keys and values are written; others are taken to be as large.
        heads: of its queries.
        device: where it is.
    """

    def __init__(self, segments: Sequence[Segment], layer: int, heads: int, device: torch.device) -> None:
        self.groups: list[Group] = []
        self.alone: list[tuple[int, Segment]] = []
        """By the index of their first row."""
        most_rows = 0 if device == _HOST else _MOST_ROWS
        short: dict[KVStorage, list[tuple[int, Segment]]] = {}
        first = 0
        for segment in segments:
            storage = segment.cache.pool.storage
            is_short = (
                segment.num_rows <= most_rows and segment.num_tokens * storage.token_bytes(layer) <= _MOST_BYTES_OF_ONE
            )
            (short.setdefault(storage, []) if is_short else self.alone).append((first, segment))
            first += segment.num_rows
        for storage, members in short.items():
            # Scores are float32 where no fused kernel is to be had.
            scores = 4 * heads * max(segment.num_rows for _, segment in members)
            for group in _of_like_length(members, _MOST_BYTES // (storage.token_bytes(layer) + scores)):
                if len(group) > 1:
                    self.groups.append(Group(sorted(group, key=lambda member: member[0])))
                else:
                    self.alone += group
        self.alone.sort(key=lambda member: member[0])
        self._order: Integers | None = None
        if self.groups and len(self.groups) + len(self.alone) > 1:
            alone = [np.arange(first, first + segment.num_rows) for first, segment in self.alone]
            rows = np.concatenate([*(group.rows for group in self.groups), *alone])
            self._order = Integers(np.argsort(rows))

    def in_order(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows of the batch, (rows, heads, head_dim), from those of the groups and then of those that are alone."""
        together = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        return together if self._order is None else together.index_select(0, self._order.on(together.device)[0])


def _of_like_length(members: Sequence[tuple[int, Segment]], most_tokens: int) -> list[list[tuple[int, Segment]]]:
    """Divide segments so that a group has at most so many tokens, padding included, and half of them are no padding."""
    groups: list[list[tuple[int, Segment]]] = []
    longest = 0
    for member in sorted(members, key=lambda member: -member[1].num_tokens):
        num_tokens = _padded(member[1].num_tokens)
        is_alike = longest <= max(2 * num_tokens, _PADDED_ANYWAY)
        if groups and is_alike and (len(groups[-1]) + 1) * longest <= most_tokens:
            groups[-1].append(member)
        else:
            groups.append([member])
            longest = num_tokens
    return groups


def _padded(num_tokens: int) -> int:
    return -(-num_tokens // _MULTIPLE) * _MULTIPLE


def _slots(segments: Sequence[Segment], num_tokens: int) -> np.ndarray:
    """Where the tokens of each segment are, the last one as often as is needed; (segments, num_tokens)."""
    starts = np.array([segment.spans[0][0] for segment in segments])[:, None]
    lasts = np.array([segment.num_tokens - 1 for segment in segments])[:, None]
    # Nearly always a segment is one span.
    slots: np.ndarray = starts + np.minimum(np.arange(num_tokens), lasts)
    for index, segment in enumerate(segments):
        if len(segment.spans) > 1:
            slots[index, : segment.num_tokens] = np.concatenate([np.arange(*span) for span in segment.spans])
            slots[index, segment.num_tokens :] = segment.spans[-1][1] - 1
    return slots

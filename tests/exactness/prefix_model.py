"""A model whose law depends on every token before, all of which it reads back from the cache.

Its first layer keeps tokens, its second what stands for all tokens up to each, as the layers of a real model do. So any
row that is stale, of somebody else, or in the wrong place changes what comes out.
"""

from __future__ import annotations

import functools
import random
import zlib
from types import SimpleNamespace

import torch

from specdec.runner.attention import RaggedBatch
from specdec.runner.segment import Segment

VOCAB_SIZE = 5
Prefix = tuple[int, ...]


@functools.lru_cache(maxsize=1 << 16)
def logits_behind(prefix: Prefix) -> tuple[float, ...]:
    """Of each token."""
    source = random.Random(str(prefix))
    return tuple(source.gauss(0.0, 1.5) for _ in range(VOCAB_SIZE))


@functools.lru_cache(maxsize=1 << 16)
def _number(prefix: Prefix) -> int:
    return zlib.crc32(bytes(prefix))


class PrefixModel:
    """What the runner needs of a model: a device, weights and a forward pass over a ragged batch."""

    device = torch.device("cpu")

    def parameters(self) -> list[torch.Tensor]:
        """None: it looks nothing up."""
        return []

    def __call__(
        self,
        input_ids: torch.Tensor,  # (1, rows)
        position_ids: torch.Tensor,  # (1, rows)
        ragged_batch: RaggedBatch,
        logits_to_keep: torch.Tensor,  # (kept rows,)
        use_cache: bool,
    ) -> SimpleNamespace:
        """`logits` is (1, kept rows, vocabulary)."""
        tokens = input_ids[..., None]
        ragged_batch.write(0, tokens, tokens)
        columns = [self._columns(segment) for segment in ragged_batch.segments]
        seen = [
            [tuple(held[column] for column in row) for row in rows]
            for held, rows in zip(
                (segment.read(0)[0][0, :, 0].tolist() for segment in ragged_batch.segments), columns, strict=True
            )
        ]
        numbers = torch.tensor([_number(prefix) for prefixes in seen for prefix in prefixes])[None, :, None]
        ragged_batch.write(1, numbers, -numbers)
        logits = []
        for segment, rows, prefixes in zip(ragged_batch.segments, columns, seen, strict=True):
            keys, values = (held[0, :, 0].tolist() for held in segment.read(1))
            for row, prefix in zip(rows, prefixes, strict=True):
                is_right = all(
                    keys[column] == -values[column] == _number(prefix[: place + 1]) for place, column in enumerate(row)
                )
                logits.append(logits_behind(prefix if is_right else (*prefix, -1)))
        kept = [logits[row] for row in logits_to_keep.tolist()]
        return SimpleNamespace(logits=torch.tensor(kept, dtype=torch.float32).reshape(1, -1, VOCAB_SIZE))

    def _columns(self, segment: Segment) -> list[list[int]]:
        """Which of the cached and new tokens each new row sees, itself included."""
        mask = segment.mask(None, self.device)
        if mask is None:
            return [list(range(segment.cache.length + 1))]
        return [row.nonzero()[:, 0].tolist() for row in mask]

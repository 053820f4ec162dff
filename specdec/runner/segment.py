"""What one sequence runs in a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec.runner.cache import SequenceCache
from specdec.runner.visibility import Visibility


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
        self.spans = self.cache.spans(self.num_tokens)

    @property
    def num_tokens(self) -> int:
        """Cached and new."""
        return self.cache.length + self.num_rows

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
            self._masks[key] = self._new_mask(sliding_window, device)
        return self._masks[key]

    def _new_mask(self, sliding_window: int | None, device: torch.device) -> torch.Tensor | None:
        total = self.num_tokens
        if self.num_rows == 1 and not self.parents and (sliding_window is None or total <= sliding_window):
            return None
        if self.parents:
            sequence = (self.cache.length, self.num_rows, self.parents)
            return Visibility([sequence], self.num_rows, total).mask(sliding_window, device)[0]
        # The same, in a quarter of the time.
        columns = torch.arange(total, device=device)
        rows = columns[self.cache.length :, None]
        mask = columns <= rows
        if sliding_window is not None:
            mask &= columns > rows - sliding_window
        return mask

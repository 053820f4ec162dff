"""Keys and values of one sequence. Its length is the only state: rolling back is setting it."""

from __future__ import annotations

import torch

_FIRST_CAPACITY = 64


class SequenceCache:
    """Keys and values of one sequence for every layer, contiguous, grown by doubling.

    A forward pass first writes the new rows of every layer behind `length` and then moves `length` past them, so a pass
    that fails half-way leaves the cache as it was.
    """

    def __init__(self) -> None:
        self.length = 0
        """Tokens whose keys and values are valid, counted from the start of the sequence."""
        self._keys: dict[int, torch.Tensor] = {}  # layer -> (kv_heads, capacity, head_dim)
        self._values: dict[int, torch.Tensor] = {}

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the new rows of one layer behind the valid ones and return all of them.

        Args:
            layer: index of the layer.
            key: (kv_heads, rows, head_dim)
            value: (kv_heads, rows, head_dim)

        Returns:
            Views of all keys and values up to the new rows, each (kv_heads, length + rows, head_dim).
        """
        end = self.length + key.shape[1]
        return _put(self._keys, layer, key, self.length, end), _put(self._values, layer, value, self.length, end)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens; what lies behind is overwritten by the next pass.

        Raises:
            ValueError: `length` is negative or beyond the valid tokens.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} tokens to {length}")
        self.length = length

    @torch.inference_mode()
    def copy_prefix(self, source: SequenceCache, length: int) -> None:
        """Begin with the first `length` tokens of another sequence, which must be the same tokens as this one's.

        Raises:
            ValueError: this cache is not empty, or `source` has fewer valid tokens.
        """
        if self.length or length > source.length:
            raise ValueError(f"cannot copy {length} of {source.length} tokens into a cache of {self.length}")
        for layer in source._keys:
            self.write(layer, source._keys[layer][:, :length], source._values[layer][:, :length])
        self.length = length

    @torch.inference_mode()
    def keep_rows(self, base: int, rows: list[int]) -> None:
        """After a token tree: move the rows `base + rows[i]` to `base + i` and end the sequence there.

        `rows` increases, so a chain (0, 1, 2, ...) moves nothing.
        """
        if rows != list(range(len(rows))):
            source = torch.tensor([base + row for row in rows])
            for tensors in (self._keys, self._values):
                for tensor in tensors.values():
                    tensor[:, base : base + len(rows)] = tensor[:, source.to(tensor.device)]
        self.truncate(base + len(rows))

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        return sum(t.numel() * t.element_size() for t in (*self._keys.values(), *self._values.values()))


def _put(tensors: dict[int, torch.Tensor], layer: int, new: torch.Tensor, start: int, end: int) -> torch.Tensor:
    held = tensors.get(layer)
    if held is None or held.shape[1] < end:
        capacity = max(_FIRST_CAPACITY, 1 << (end - 1).bit_length())
        grown = new.new_empty((new.shape[0], capacity, new.shape[2]))
        if held is not None:
            grown[:, :start] = held[:, :start]
        tensors[layer] = held = grown
    held[:, start:end] = new
    return held[:, :end]

"""The tensors of key-value memory: one slot a token, for every layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_FIRST_SLOTS = 64


class KVStorage:
    """Keys and values by slot.

    Each layer's tensors are (kv_heads, slots, head_dim): slots that follow each other are read as a view, as fast as
    the tensors of a single sequence (docs/adr/0005). A layer's are made when it is first written, on the device of what
    is written.

    Args:
        num_slots: all slots; None: as many as `require` asks for, grown by doubling.
    """

    def __init__(self, num_slots: int | None = None) -> None:
        self._is_growing = num_slots is None
        self._num_slots = _FIRST_SLOTS if num_slots is None else num_slots
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._heads: dict[int, torch.Tensor] = {}  # by layer: keys and values in one, if they are of one size
        self._states: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by number: rows, and which are there

    def require(self, num_slots: int) -> None:
        """Have so many slots from the next write on.

        Raises:
            ValueError: there are fewer, and no more to be had.
        """
        if num_slots > self._num_slots:
            if not self._is_growing:
                raise ValueError(f"slot {num_slots - 1} is wanted of {self._num_slots}")
            self._num_slots = 1 << (num_slots - 1).bit_length()

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Put rows of one layer into slots.

        Args:
            layer: index of the layer.
            key: (kv_heads, rows, key_dim)
            value: (kv_heads, rows, value_dim)
            slots: (rows,), integers, distinct.
        """
        held = self._held(layer, key, value)
        held[0].index_copy_(1, slots, key)
        held[1].index_copy_(1, slots, value)

    def write_heads(self, layer: int, heads: torch.Tensor, slots: torch.Tensor) -> None:
        """As `write`, in one go, of keys and values that lie in one tensor.

        Args:
            layer: index of the layer.
            heads: (2 * kv_heads, rows, head_dim), the keys before the values.
            slots: (rows,), integers, distinct.
        """
        self.heads(layer, heads).index_copy_(1, slots, heads)

    def heads(self, layer: int, like: torch.Tensor) -> torch.Tensor:
        """Keys and values of all slots of a layer, for writing and reading; (2 * kv_heads, slots, head_dim).

        Args:
            layer: index of the layer.
            like: rows as `write_heads` takes them, or none.
        """
        held = self._heads.get(layer)
        if held is None or held.shape[1] < self._num_slots:
            self._held(layer, *like.chunk(2))
            held = self._heads[layer]
        return held

    def read(self, layer: int, spans: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of one layer in spans of slots; each (kv_heads, rows, head_dim). One span is a view, several a copy.

        Args:
            layer: index of the layer.
            spans: first slot, and the one behind the last, of each.
        """
        keys, values = self._layers[layer]
        if len(spans) == 1:
            start, end = spans[0]
            return keys[:, start:end], values[:, start:end]
        return (
            torch.cat([keys[:, start:end] for start, end in spans], dim=1),
            torch.cat([values[:, start:end] for start, end in spans], dim=1),
        )

    def gather(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the rows of one layer at any slots; each (kv_heads, rows, head_dim).

        Args:
            layer: index of the layer.
            slots: (rows,), integers, not necessarily distinct.
        """
        both = self._heads.get(layer)
        if both is not None:
            keys, values = both.index_select(1, slots).chunk(2)
            return keys, values
        keys, values = self._layers[layer]
        return keys.index_select(1, slots), values.index_select(1, slots)

    def token_bytes(self, layer: int) -> int:
        """Memory of one token in a layer that has been written."""
        return sum(held.shape[0] * held.shape[2] * held.element_size() for held in self._layers[layer])

    def write_states(self, number: int, states: torch.Tensor, slots: torch.Tensor) -> None:
        """Put hidden states beside the keys and values of their tokens.

        Args:
            number: of the state.
            states: (rows, hidden_size), of any floating type; kept in bfloat16.
            slots: (rows,), integers, distinct.
        """
        held = self._states.get(number)
        if held is None or len(held[0]) < self._num_slots:
            rows = states.new_empty((self._num_slots, states.shape[1]), dtype=torch.bfloat16)
            is_there = torch.zeros(self._num_slots, dtype=torch.bool, device=states.device)
            if held is not None:
                rows[: len(held[0])], is_there[: len(held[1])] = held
            held = self._states[number] = rows, is_there
        held[0].index_copy_(0, slots, states.to(torch.bfloat16))
        held[1].index_fill_(0, slots, value=True)

    def has_states(self, numbers: Sequence[int], start: int, end: int) -> bool:
        """Whether hidden states are there at all slots from `start` up to, and without, `end`."""
        return all(number in self._states and bool(self._states[number][1][start:end].all()) for number in numbers)

    def read_states(self, numbers: Sequence[int], slots: Sequence[int]) -> tuple[torch.Tensor, int]:
        """Hidden states of the last of some slots, as far back as all of them are there.

        Args:
            numbers: of the states.
            slots: in the order of their tokens.

        Returns:
            (rows, states, hidden_size), bfloat16, on the device of the first state, and how many rows that is.
        """
        held = [self._states[number] for number in numbers if number in self._states]
        if len(held) < len(numbers) or not slots:
            return torch.empty(0), 0
        device = held[0][0].device
        picked = torch.tensor(slots, dtype=torch.long, device=device)
        is_there = torch.stack([each[picked.to(each.device)].to(device) for _, each in held]).all(0)
        missing = (~is_there).nonzero()
        first = int(missing[-1, 0]) + 1 if len(missing) else 0
        found = [rows[picked[first:].to(rows.device)].to(device) for rows, _ in held]
        return torch.stack(found, 1), len(slots) - first

    @torch.inference_mode()
    def move(self, source: Sequence[int], target: Sequence[int], origin: KVStorage | None = None) -> None:
        """Copy rows of every layer from `source` slots, of `origin` if it is another storage, to `target` slots."""
        origin = origin or self
        for layer, (keys, values) in origin._layers.items():
            source_slots = torch.tensor(source, dtype=torch.long, device=keys.device)
            slots = torch.tensor(target, dtype=torch.long, device=keys.device)
            self.write(layer, keys.index_select(1, source_slots), values.index_select(1, source_slots), slots)
        for number, (rows, is_there) in origin._states.items():
            source_slots = torch.tensor(source, dtype=torch.long, device=rows.device)
            slots = torch.tensor(target, dtype=torch.long, device=rows.device)
            known = is_there[source_slots]
            self.write_states(number, rows[source_slots], slots)
            self._states[number][1].index_copy_(0, slots, known)

    @property
    def bytes_per_slot(self) -> int:
        """Memory of one token, all layers together; 0 before the first pass."""
        return sum(self.bytes_by_device().values())

    def bytes_by_device(self) -> dict[torch.device, int]:
        """Memory of one token on each device that has layers."""
        found: dict[torch.device, int] = {}
        for tensor in (tensor for held in self._layers.values() for tensor in held):
            size = tensor.shape[0] * tensor.shape[2] * tensor.element_size()
            found[tensor.device] = found.get(tensor.device, 0) + size
        return found

    @property
    def num_bytes(self) -> int:
        """Memory of all slots."""
        return self._num_slots * self.bytes_per_slot

    def _held(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The tensors of a layer with all slots, for rows like these, with what was held before."""
        held = self._layers.get(layer)
        if held is not None and held[0].shape[1] >= self._num_slots:
            return held
        # Not filled: on Linux memory that was never written takes no space.
        if key.shape[2] == value.shape[2]:
            both = key.new_empty((key.shape[0] + value.shape[0], self._num_slots, key.shape[2]))
            self._heads[layer] = both
            keys, values = both[: key.shape[0]], both[key.shape[0] :]
        else:
            keys = key.new_empty((key.shape[0], self._num_slots, key.shape[2]))
            values = value.new_empty((value.shape[0], self._num_slots, value.shape[2]))
        for new, old in zip((keys, values), held or (), strict=False):
            new[:, : old.shape[1]] = old
        self._layers[layer] = keys, values
        return keys, values

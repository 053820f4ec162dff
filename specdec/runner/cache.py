"""Keys and values of one sequence. Its length is the only state: rolling back is setting it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec.runner.block_keys import BlockKeys
from specdec.runner.free_space import Room
from specdec.runner.pool import KVPool

_ROOM_TOKENS = 512
"""How far a sequence is thought to grow at most, when room is looked for where its blocks lie side by side."""


class SequenceCache:
    """Keys and values of one sequence for every layer, in blocks of a pool, some of which it may share.

    A forward pass first writes the new rows of every layer behind `length` and then moves `length` past them, so a pass
    that fails half-way leaves the cache as it was. Who is done with a cache in a shared pool must `release` it.

    Args:
        pool: where its blocks are; None: memory of its own.
        salt: prefixes are found again by caches with the same salt only.
    """

    def __init__(self, pool: KVPool | None = None, salt: bytes = b"") -> None:
        self._pool = pool or KVPool(None)
        self._keys = BlockKeys(self._pool.secret, salt, self._pool.block_tokens)
        self._room = Room()
        self._blocks: list[int] = []
        self._runs: list[list[int]] = []  # first block and number of blocks that follow each other
        self._num_published = 0
        self.length = 0
        """Tokens whose keys and values are valid, counted from the start of the sequence."""
        self.needed_states: tuple[int, ...] = ()
        """Hidden states without which the keys and values of others are of no use to it."""
        self.expected_length = 0
        """Tokens that the sequence may grow to, so far as is known; room is looked for by it."""
        self.num_adopted = 0
        """How many of them were there already when the sequence began, or began again after `release`."""

    @property
    def pool(self) -> KVPool:
        """Where its blocks are."""
        return self._pool

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds, shared ones included."""
        return len(self._blocks)

    def prepare(self, num_rows: int) -> bool:
        """Have blocks to write `num_rows` rows behind `length`; what others hold or may find is copied first.

        Returns:
            False: the pool has too few blocks; nothing has changed.
        """
        size = self._pool.block_tokens
        first, row = divmod(self.length, size)
        end = -(-(self.length + num_rows) // size)
        missing = max(end - len(self._blocks), 0)
        # Nearly always.
        if not missing and self._pool.blocks.are_writable(self._blocks[first:end], row):
            return True
        borrowed = self._borrowed(num_rows)
        if len(borrowed) + missing > self._pool.blocks.num_available:
            return False
        if not len(self._room):
            self._pool.blocks.end(self._room)
            likely = self._pool.num_blocks(min(self.expected_length, self.length + num_rows + _ROOM_TOKENS))
            self._room = self._pool.blocks.begin(max(missing, likely - len(self._blocks)))
        for index in borrowed:
            self._copy_block(index)
        for block in self._pool.blocks.take(self._room, missing):
            self._append(block)
        return True

    def num_missing(self, num_rows: int) -> int:
        """Blocks that `prepare` would take."""
        missing = self._pool.num_blocks(self.length + num_rows) - len(self._blocks)
        return max(missing, 0) + len(self._borrowed(num_rows))

    def slots(self, start: int, end: int) -> list[int]:
        """Slots of the tokens from `start` up to, and without, `end`, whose blocks it holds."""
        size = self._pool.block_tokens
        slots: list[int] = []
        while start < end:
            row = start % size
            count = min(size - row, end - start)
            first = self._blocks[start // size] * size + row
            slots.extend(range(first, first + count))
            start += count
        return slots

    def spans(self, length: int) -> list[tuple[int, int]]:
        """Where the first `length` tokens are: spans of slots, in order."""
        size = self._pool.block_tokens
        spans = []
        for first, count in self._runs:
            start = first * size
            spans.append((start, start + min(length, count * size)))
            length -= count * size
            if length <= 0:
                break
        return spans

    def states(self, numbers: Sequence[int], first: int, end: int | None = None) -> tuple[torch.Tensor, int]:
        """Hidden states of the valid tokens from `first` on, or of fewer of them if some are not there.

        Args:
            numbers: of the states.
            first: of the tokens.
            end: behind the last of them; None: all that are valid.

        Returns:
            (tokens, states, hidden_size), bfloat16, of the last tokens, and of how many that is.
        """
        return self._pool.storage.read_states(numbers, self.slots(first, self.length if end is None else end))

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens; what lies behind is overwritten by the next pass.

        Raises:
            ValueError: `length` is negative or beyond the valid tokens.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} tokens to {length}")
        self.length = length
        self._num_published = min(self._num_published, length // self._pool.block_tokens)

    def copy_prefix(self, source: SequenceCache, length: int) -> None:
        """Begin with the first `length` tokens of another sequence, which must be the same tokens as this one's.

        Raises:
            ValueError: this cache is not empty, or `source` has fewer valid tokens, or the pool is full.
        """
        if self.length or length > source.length or not self.prepare(length):
            raise ValueError(f"cannot copy {length} of {source.length} tokens into a cache of {self.length}")
        self._pool.storage.move(source.slots(0, length), self.slots(0, length), source.pool.storage)
        self.length = length

    def keep_rows(self, base: int, rows: list[int]) -> None:
        """After a token tree: move the rows `base + rows[i]` to `base + i` and end the sequence there.

        `rows` increases, so a chain (0, 1, 2, ...) moves nothing. All of them were written by the last pass.
        """
        if rows and rows[-1] != len(rows) - 1:
            slots = self.slots(base, self.length)
            self._pool.storage.move([slots[row] for row in rows], slots[: len(rows)])
        self.truncate(base + len(rows))

    def trim(self) -> None:
        """Release the blocks behind those of the valid tokens."""
        needed = self._pool.num_blocks(self.length)
        for block in reversed(self._blocks[needed:]):
            self._pool.blocks.release(block)
        blocks, self._blocks = self._blocks[:needed], []
        self._runs.clear()
        for block in blocks:
            self._append(block)

    def next_key(self, token_ids: Sequence[int]) -> bytes | None:
        """Key of the block that will be computed next; None if there is nothing in it that could be shared.

        Args:
            token_ids: committed tokens, more than `length`.
        """
        index = self.length // self._pool.block_tokens
        is_alone = len(token_ids) - index * self._pool.block_tokens <= 1
        return None if is_alone else self._keys.key(index, token_ids)

    def adopt(self, token_ids: Sequence[int]) -> None:
        """Hold the blocks that the pool has of these tokens, from `length` on.

        The last token is left to be run, for its logits.

        Args:
            token_ids: committed tokens, more than `length`.
        """
        size, before = self._pool.block_tokens, self.length
        while len(self._blocks) * size == self.length < len(token_ids) - 1:
            block = self._pool.blocks.find(self._keys.key(len(self._blocks), token_ids))
            if block is None:
                break
            length = min(self.length + size, len(token_ids) - 1)
            first = block * size
            if not self._pool.storage.has_states(self.needed_states, first, first + length - self.length):
                # The one that is computed now has them, and takes its place.
                self._pool.blocks.forget(block)
                break
            self._pool.blocks.hold(block)
            self._append(block)
            self.length = length
        self._num_published = max(self._num_published, self.length // size)
        self.num_adopted += self.length - before

    def publish(self, token_ids: Sequence[int], *, with_tail: bool = False) -> None:
        """Let others find the full blocks of these tokens.

        Args:
            token_ids: committed tokens; rows behind them, of draft tokens, are not published.
            with_tail: the last block too, though it is not full: for another sequence with exactly these tokens.
        """
        size = self._pool.block_tokens
        length = min(self.length, len(token_ids))
        # Nearly always.
        if length < (self._num_published + 1) * size and not with_tail:
            return
        for index in range(self._num_published, length // size):
            self._pool.blocks.publish(self._blocks[index], self._keys.key(index, token_ids), size)
            self._num_published = index + 1
        if with_tail and length % size and length == len(token_ids):
            index = length // size
            self._pool.blocks.publish(self._blocks[index], self._keys.key(index, token_ids), length % size)

    def withdraw(self) -> None:
        """Let nobody else find its blocks: they hold something that is not right."""
        for block in self._blocks:
            self._pool.blocks.withdraw(block)

    def release(self) -> None:
        """Hold no blocks any more: the sequence is over, or will be run again from its start."""
        for block in reversed(self._blocks):
            self._pool.blocks.release(block)
        self._pool.blocks.end(self._room)
        self._blocks.clear()
        self._runs.clear()
        self._num_published = self.num_adopted = 0
        self.length = 0

    def _borrowed(self, num_rows: int) -> list[int]:
        """Which of its blocks the next rows come into although it may not write there."""
        size = self._pool.block_tokens
        end = min(self._pool.num_blocks(self.length + num_rows), len(self._blocks))
        return [
            index
            for index in range(self.length // size, end)
            if not self._pool.blocks.is_writable(self._blocks[index], max(self.length - index * size, 0))
        ]

    def _append(self, block: int) -> None:
        self._blocks.append(block)
        self._pool.storage.require((block + 1) * self._pool.block_tokens)
        if self._runs and sum(self._runs[-1]) == block:
            self._runs[-1][1] += 1
        else:
            self._runs.append([block, 1])

    def _copy_block(self, index: int) -> None:
        """Put a copy of its own in place of a block, of the valid rows."""
        size = self._pool.block_tokens
        (copy,) = self._pool.blocks.take(self._room, 1)
        block = self._blocks[index]
        num_rows = min(max(self.length - index * size, 0), size)
        if num_rows:
            rows = range(num_rows)
            self._pool.storage.move([block * size + row for row in rows], [copy * size + row for row in rows])
        self._pool.blocks.release(block)
        blocks, self._blocks = self._blocks, []
        self._runs.clear()
        for place, other in enumerate(blocks):
            self._append(copy if place == index else other)

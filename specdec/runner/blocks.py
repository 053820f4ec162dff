"""Who holds which block of key-value memory, and what the blocks that nobody holds are still good for."""

from __future__ import annotations

from collections.abc import Iterable

from specdec.runner.free_space import FreeSpace, Room


class BlockPool:
    """Blocks of a fixed number of tokens, for all layers; counts references and evicts what was used least recently.

    A block is free, in use (one or more sequences hold it), or cached: nobody holds it, but it is published under a key
    that stands for all tokens up to its end, so a sequence that begins with the same tokens can hold it again. Cached
    blocks are evicted when free ones run out.

    Published rows are never written again while the key stands; `is_writable` says what a holder may write.

    Args:
        num_blocks: all blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._space = FreeSpace(num_blocks)
        self._references: dict[int, int] = {}  # of blocks in use
        self._cached: dict[int, None] = {}  # least recently used first
        self._by_key: dict[bytes, int] = {}
        self._keys: dict[int, list[bytes]] = {}  # of published blocks
        self._num_published: dict[int, int] = {}  # tokens of published blocks
        self.num_evictions = 0
        """Cached blocks that were given up for others, so far."""

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return len(self._references)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that can be found again."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that can be taken."""
        return self._space.num_free + len(self._cached)

    def begin(self, expected: int) -> Room:
        """A sequence begins that may grow to `expected` blocks; find it room where they lie side by side.

        If there is no such room, cached blocks are evicted for it, up to as many as it would need.
        """
        found = self._space.has_range(expected)
        for _ in range(expected):
            if found or not self._cached:
                break
            found = self._evict() >= expected
        return self._space.open(expected)

    def end(self, room: Room) -> None:
        """The sequence is over; it has released its blocks."""
        self._space.close(room)

    def take(self, room: Room, count: int) -> list[int]:
        """Blocks for a sequence to write, each held once.

        Raises:
            ValueError: fewer are available.
        """
        if count > self.num_available:
            raise ValueError(f"{count} blocks are wanted and {self.num_available} are available")
        while self._space.num_free < count:
            self._evict()
        blocks = self._space.take(room, count)
        for block in blocks:
            self._references[block] = 1
        return blocks

    def hold(self, block: int) -> None:
        """One more sequence holds a block that `find` gave."""
        if block in self._references:
            self._references[block] += 1
            return
        del self._cached[block]
        self._references[block] = 1

    def release(self, block: int) -> None:
        """A sequence holds a block no longer. Of several, release the last of the sequence first: it is evicted first.

        Raises:
            ValueError: nobody holds it.
        """
        count = self._references.get(block, 0)
        if count == 0:
            raise ValueError(f"block {block} is released and nobody holds it")
        if count > 1:
            self._references[block] = count - 1
            return
        del self._references[block]
        if block in self._keys:
            self._cached[block] = None
        else:
            self._space.give(block)

    def is_writable(self, block: int, row: int) -> bool:
        """Whether the one who holds a block may write it from `row` on; otherwise it needs a copy of its own."""
        return self._references[block] == 1 and row >= self._num_published.get(block, 0)

    def are_writable(self, blocks: Iterable[int], row: int) -> bool:
        """`is_writable` of several at once: of the first from `row` on, of the others from their start."""
        for block in blocks:
            if self._references[block] != 1 or row < self._num_published.get(block, 0):
                return False
            row = 0
        return True

    def publish(self, block: int, key: bytes, num_tokens: int) -> None:
        """The first `num_tokens` rows of a block in use are final and are found by `key` from now on.

        If another block has the key, it keeps it.
        """
        if key in self._by_key:
            return
        self._by_key[key] = block
        self._keys.setdefault(block, []).append(key)
        self._num_published[block] = max(num_tokens, self._num_published.get(block, 0))

    def find(self, key: bytes) -> int | None:
        """The block published under a key."""
        return self._by_key.get(key)

    def withdraw(self, block: int) -> None:
        """A block in use is found by no key any more; harmless if it never was."""
        for key in self._keys.pop(block, ()):
            del self._by_key[key]
        self._num_published.pop(block, None)

    def forget(self, block: int) -> None:
        """A block is of no use to those who find it: nobody finds it any more."""
        if block in self._references:
            self.withdraw(block)
        else:
            del self._cached[block]
            self.withdraw(block)
            self._space.give(block)

    def _evict(self) -> int:
        """Free the block that has been cached longest; returns how many free blocks now lie side by side there."""
        block = next(iter(self._cached))
        del self._cached[block]
        self.withdraw(block)
        self.num_evictions += 1
        return self._space.give(block)

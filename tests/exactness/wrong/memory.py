"""Wrong variants of the key-value memory that sequences share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specdec.runner.block_keys import BlockKeys
from specdec.runner.blocks import BlockPool
from specdec.runner.cache import SequenceCache
from tests.exactness import memory_checks as memory
from tests.exactness.wrong.sabotage import sabotage


@sabotage(memory.check_shared_memory)
def shared_blocks_written(patch: pytest.MonkeyPatch) -> None:
    """A block that others hold or may find is written without making a copy first."""
    patch.setattr(BlockPool, "is_writable", lambda self, block, row: True)


@sabotage(memory.check_shared_memory)
def copied_too_little(patch: pytest.MonkeyPatch) -> None:
    """The copy of a shared block lacks its last valid row."""
    copy_block = SequenceCache._copy_block

    def changed(self: SequenceCache, index: int) -> None:
        self.length -= 1
        copy_block(self, index)
        self.length += 1

    patch.setattr(SequenceCache, "_copy_block", changed)


@sabotage(memory.check_shared_memory)
def evicted_blocks_found(patch: pytest.MonkeyPatch) -> None:
    """The key of an evicted block still leads to it, whatever is written there now."""

    def withdraw(self: BlockPool, block: int) -> None:
        self._keys.pop(block, None)
        self._num_published.pop(block, None)

    def find(self: BlockPool, key: bytes) -> int | None:
        block = self._by_key.get(key)
        # A free block would be noticed at once; the fault that is not is one that is in use, or found again.
        return block if block in self._references or block in self._cached else None

    patch.setattr(BlockPool, "withdraw", withdraw)
    patch.setattr(BlockPool, "find", find)


@sabotage(memory.check_shared_memory)
def released_blocks_taken(patch: pytest.MonkeyPatch) -> None:
    """A block is free as soon as one of those who hold it releases it."""
    release = BlockPool.release

    def changed(self: BlockPool, block: int) -> None:
        if block in self._references:
            self._references[block] = 1
            release(self, block)

    def is_writable(self: BlockPool, block: int, row: int) -> bool:
        return self._references.get(block, 1) == 1 and row >= self._num_published.get(block, 0)

    patch.setattr(BlockPool, "release", changed)
    patch.setattr(BlockPool, "is_writable", is_writable)


@sabotage(memory.check_shared_memory)
def keys_of_the_block_alone(patch: pytest.MonkeyPatch) -> None:
    """A key stands for the tokens of its block, whatever comes before them."""
    key = BlockKeys.key

    def changed(self: BlockKeys, index: int, token_ids: Sequence[int]) -> bytes:
        block_tokens = self._block_tokens
        alone = BlockKeys(self._secret, b"", block_tokens)
        return key(alone, 0, token_ids[index * block_tokens : (index + 1) * block_tokens])

    patch.setattr(BlockKeys, "key", changed)


@sabotage(memory.check_shared_memory)
def keys_without_the_last_token(patch: pytest.MonkeyPatch) -> None:
    """A key leaves the last token of its block out."""
    key = BlockKeys.key

    def changed(self: BlockKeys, index: int, token_ids: Sequence[int]) -> bytes:
        end = min((index + 1) * self._block_tokens, len(token_ids))
        return key(BlockKeys(self._secret, b"", self._block_tokens), index, [*token_ids[: end - 1], 0])

    patch.setattr(BlockKeys, "key", changed)


@sabotage(memory.check_shared_memory)
def draft_tokens_published(patch: pytest.MonkeyPatch) -> None:
    """Blocks are published as they are filled, with rows of draft tokens under the committed tokens' keys."""

    def publish(self: SequenceCache, token_ids: Sequence[int], *, with_tail: bool = False) -> None:
        size = self.pool.block_tokens
        for index in range(self._num_published, (self.length + 1) // size):
            if (index + 1) * size <= len(token_ids) and index < len(self._blocks):
                self.pool.blocks.publish(self._blocks[index], self._keys.key(index, token_ids), size)
                self._num_published = index + 1

    patch.setattr(SequenceCache, "publish", publish)


@sabotage(memory.check_shared_memory)
def lost_blocks_still_read(patch: pytest.MonkeyPatch) -> None:
    """A sequence whose blocks went to older ones goes on reading them."""

    def release(self: SequenceCache) -> None:
        for block in reversed(self._blocks):
            if block in self.pool.blocks._references:
                self.pool.blocks.release(block)
        self.pool.blocks.end(self._room)

    def is_writable(self: BlockPool, block: int, row: int) -> bool:
        return True

    patch.setattr(SequenceCache, "release", release)
    patch.setattr(BlockPool, "is_writable", is_writable)

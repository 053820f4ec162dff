"""The key-value memory that the sequences of one model share."""

from __future__ import annotations

import secrets

from specdec.runner.blocks import BlockPool
from specdec.runner.storage import KVStorage

BLOCK_TOKENS = 16
"""Tokens of a block: what is shared, evicted and counted at once. Speed does not depend on it (docs/adr/0005)."""
_ENDLESS = 1 << 40


class KVPool:
    """Blocks and the tensors behind them: block `b` is the slots from `b * block_tokens` on.

    Args:
        num_blocks: all blocks; None: no limit, with tensors that grow, for a cache that is nobody else's.
        block_tokens: tokens of a block.
    """

    def __init__(self, num_blocks: int | None, block_tokens: int = BLOCK_TOKENS) -> None:
        self.block_tokens = block_tokens
        self.blocks = BlockPool(_ENDLESS if num_blocks is None else num_blocks)
        self.storage = KVStorage(None if num_blocks is None else num_blocks * block_tokens)
        self.secret = secrets.token_bytes(16)
        """Of this pool, for the keys of its blocks: nobody can prepare two prefixes that have one key."""

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-num_tokens // self.block_tokens)

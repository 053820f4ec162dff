"""Keys of blocks: what the blocks of equal prefixes have in common."""

from __future__ import annotations

import array
import hashlib
from collections.abc import Sequence

_KEY_BYTES = 16


class BlockKeys:
    """Keys of the blocks of one sequence.

    A key stands for all tokens from the first up to the end of the block, and for the salt: BLAKE2b of the key before
    it and the block's tokens, 128 bits. Blocks with the same key may be taken for each other.

    Args:
        secret: of the pool, at most 64 bytes.
        salt: prefixes are shared by sequences with the same salt only.
        block_tokens: tokens of a block.
    """

    __slots__ = ("_block_tokens", "_keys", "_root", "_secret")

    def __init__(self, secret: bytes, salt: bytes, block_tokens: int) -> None:
        self._secret = secret
        self._block_tokens = block_tokens
        self._root = hashlib.blake2b(salt, digest_size=_KEY_BYTES, key=secret).digest()
        self._keys: list[bytes] = []

    def key(self, index: int, token_ids: Sequence[int]) -> bytes:
        """Key of a block, of as many of its tokens as there are.

        Args:
            index: of the block.
            token_ids: of the sequence; at least one of them in the block. From call to call they only get more.
        """
        while len(self._keys) <= index:
            start = len(self._keys) * self._block_tokens
            tokens = token_ids[start : start + self._block_tokens]
            parent = self._keys[-1] if self._keys else self._root
            content = parent + array.array("I", tokens).tobytes()
            key = hashlib.blake2b(content, digest_size=_KEY_BYTES, key=self._secret).digest()
            if len(tokens) < self._block_tokens:
                return key
            self._keys.append(key)
        return self._keys[index]

"""Which replica is likely to have the keys and values of a prompt's beginning."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

_LENGTHS = (64, 256, 1024, 4096, 16384)
"""Beginnings that are remembered, in tokens. What is shared is a system prompt, or turns before."""
_MOST_REMEMBERED = 1 << 16


class PrefixMemory:
    """Remembers where beginnings of prompts went last, by hash: nothing can be read back from it.

    Args:
        most: beginnings that are kept, the latest of them.
    """

    def __init__(self, most: int = _MOST_REMEMBERED) -> None:
        self._most = most
        self._places: OrderedDict[bytes, str] = OrderedDict()

    def find(self, token_ids: Sequence[int], salt: bytes) -> dict[str, int]:
        """How many of the first tokens each replica is likely to have in its cache; those not listed have none.

        Args:
            token_ids: of a sequence about to be opened.
            salt: the cache salt it is opened with.
        """
        lengths: dict[str, int] = {}
        for length, key in _keys(token_ids, salt):
            place = self._places.get(key)
            if place is not None:
                lengths[place] = length
        return lengths

    def note(self, token_ids: Sequence[int], salt: bytes, place: str) -> None:
        """A sequence was opened at a replica."""
        for _, key in _keys(token_ids, salt):
            self._places[key] = place
            self._places.move_to_end(key)
        while len(self._places) > self._most:
            self._places.popitem(last=False)


def _keys(token_ids: Sequence[int], salt: bytes) -> list[tuple[int, bytes]]:
    digest = hashlib.blake2b(len(salt).to_bytes(4, "little") + salt, digest_size=16)
    keys = []
    done = 0
    for length in _LENGTHS:
        if length > len(token_ids):
            break
        digest.update(array("I", token_ids[done:length]).tobytes())
        done = length
        keys.append((length, digest.copy().digest()))
    return keys

"""The models of the fakes: functions from a prefix to the next token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdec.checksum import prefix_checksum
from tests.tiny_models import TINY_VOCAB_SIZE

NextToken = Callable[[Sequence[int]], int]


def table_token(prefix: Sequence[int]) -> int:
    """The target's token behind a prefix: looks random, never a special token."""
    return 2 + prefix_checksum(prefix[-3:], len(prefix)) % (TINY_VOCAB_SIZE - 2)


def plain_continuation(prompt: Sequence[int], num_tokens: int, next_token: NextToken = table_token) -> list[int]:
    """What the target alone would have written."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def half_right(prefix: Sequence[int]) -> int:
    """The table's token, except now and then."""
    token = table_token(prefix)
    return token if prefix_checksum(prefix[-2:]) % 3 else 2 + (token - 1) % (TINY_VOCAB_SIZE - 2)

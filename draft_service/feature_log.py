"""The target's features of a sequence's last tokens, as they came with its commits, or before them."""

from __future__ import annotations

from collections import deque

import torch

from specdec.errors import InvalidArgumentError
from specdec.features import feature_bytes

_EXPONENT = 0x7F80


class FeatureLog:
    """Features by the position of their token. There may be gaps: a target does not run what it has in its cache.

    Args:
        num_states: hidden states that make up the features of a token.
        hidden_size: elements of each.
        max_tokens: of how many tokens they are kept, the last ones.
    """

    def __init__(self, num_states: int, hidden_size: int, max_tokens: int) -> None:
        self._shape = (num_states, hidden_size)
        self._max_tokens = max_tokens
        self._parts: deque[tuple[int, torch.Tensor]] = (
            deque()
        )  # first position; (tokens, states, hidden_size), bfloat16
        self._num_tokens = 0

    def read(self, data: bytes) -> torch.Tensor:
        """Features from the wire; (tokens, states, hidden_size), bfloat16.

        Raises:
            InvalidArgumentError: they are not whole tokens, more than are taken at once, or not all finite numbers.
        """
        size = feature_bytes(*self._shape)
        if len(data) % size or len(data) > size * self._max_tokens:
            raise InvalidArgumentError(
                f"features have {len(data)} bytes; a token has {size}, and at most {self._max_tokens} tokens are taken"
            )
        if not data:
            return torch.empty((0, *self._shape), dtype=torch.bfloat16)
        features = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(-1, *self._shape)
        # By NumPy, in a tenth of the time: of what is not finite all bits of the exponent are set.
        if bool(((features.view(torch.int16).numpy() & _EXPONENT) == _EXPONENT).any()):
            raise InvalidArgumentError("features are not all finite numbers")
        return features

    @property
    def end(self) -> int:
        """Position behind the last token that there are features of."""
        start, part = self._parts[-1] if self._parts else (0, ())
        return start + len(part)

    def add(self, features: torch.Tensor, end: int) -> None:
        """Take features over.

        Args:
            features: from `read`.
            end: position behind the last of their tokens.
        """
        features = features[max(0, len(features) - end) :]
        if not len(features):
            return
        self._parts.append((end - len(features), features))
        self._num_tokens += len(features)
        while self._num_tokens > self._max_tokens and len(self._parts) > 1:
            self._num_tokens -= len(self._parts.popleft()[1])

    def has_all(self, first: int, num_rows: int) -> bool:
        """Whether there are features of all these positions; they are counted as `at` does."""
        missing = set(range(first, first + num_rows))
        for start, part in reversed(self._parts):
            end = start + len(part)
            if not missing or end <= first:
                break
            missing.difference_update(range(start, end))
        return not missing

    def at(self, first: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of some positions.

        Args:
            first: the first position; may be negative, where there is nothing.
            num_rows: how many positions.

        Returns:
            (num_rows, states, hidden_size), bfloat16, zeros where there are none; and (num_rows,), bool, where there
            are some.
        """
        found = torch.zeros((num_rows, *self._shape), dtype=torch.bfloat16)
        is_known = torch.zeros(num_rows, dtype=torch.bool)
        for start, part in reversed(self._parts):
            if bool(is_known.all()) or start + len(part) <= first:
                break
            low, high = max(start, first), min(start + len(part), first + num_rows)
            if low < high:
                found[low - first : high - first] = part[low - start : high - start]
                is_known[low - first : high - first] = True
        return found, is_known

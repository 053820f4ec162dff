"""One generation, measured the same way whoever did it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """Tokens and the times at which they came.

    Only decoding counts: the time from the first tokens to the last ones. Prefill is left out on purpose, because a
    prefix cache would make it nearly free for whoever is asked second.
    """

    token_ids: tuple[int, ...]
    num_first_tokens: int
    """Tokens that came at once at the beginning."""
    first_seconds: float
    """From the request to those."""
    decode_seconds: float
    """From those to the last."""

    @property
    def num_decoded_tokens(self) -> int:
        """Tokens that came within `decode_seconds`."""
        return len(self.token_ids) - self.num_first_tokens

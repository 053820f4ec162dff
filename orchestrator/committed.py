"""The committed tokens of one request: the truth, of which every other copy is a cache."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.window import Window
from specdec.checksum import prefix_checksum
from specdec.v1 import target_pb2


class ImpossibleVerdict(Exception):
    """The target's answer contradicts what it was asked; nothing of it is committed."""


class CommittedTokens:
    """Prompt and output so far, with their running checksum.

    Args:
        prompt: at least one token id.
        vocab_size: ids at or above it do not exist.
        max_length: most tokens, prompt included.
    """

    __slots__ = ("checksum", "max_length", "token_ids", "vocab_size")

    def __init__(self, prompt: Sequence[int], vocab_size: int, max_length: int) -> None:
        self.token_ids = list(prompt)
        self.checksum = prefix_checksum(self.token_ids)
        self.vocab_size = vocab_size
        self.max_length = max_length

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def room(self) -> int:
        """Tokens that may still be committed."""
        return self.max_length - len(self.token_ids)

    def outcome(self, window: Window, verdict: target_pb2.Verdict) -> list[int]:
        """The tokens that a verdict adds: the accepted draft tokens and the target's own.

        Raises:
            ImpossibleVerdict: it does not fit this prefix, the window, the vocabulary or itself.
        """
        base = len(self.token_ids)
        accepted = list(verdict.accepted_nodes)
        judged = verdict.num_judged_tokens
        if verdict.base_length != base:
            raise ImpossibleVerdict(f"it judged from {verdict.base_length} tokens; {base} are committed")
        if judged > len(window):
            raise ImpossibleVerdict(f"it judged {judged} draft tokens of {len(window)}")
        if verdict.committed_length != base + len(accepted) + 1 or verdict.committed_length > self.max_length:
            raise ImpossibleVerdict(
                f"it accepted {len(accepted)} tokens and went from {base} to {verdict.committed_length}"
                f" of at most {self.max_length}"
            )
        previous = -1
        for node in accepted:
            if node >= judged or (window.parents[node] if window.parents else node - 1) != previous:
                raise ImpossibleVerdict("the accepted nodes are not a path from the root of the window")
            previous = node
        if verdict.next_token_id >= self.vocab_size:
            raise ImpossibleVerdict(f"its next token is outside the vocabulary of {self.vocab_size}")
        return [*(window.token_ids[node] for node in accepted), verdict.next_token_id]

    def extend(self, token_ids: Sequence[int]) -> None:
        """Commit the outcome of a round."""
        self.token_ids.extend(token_ids)
        self.checksum = prefix_checksum(token_ids, self.checksum)

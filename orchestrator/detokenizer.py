"""From token ids to text as they come, without ever showing a broken character."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

_CONTEXT_TOKENS = 16
"""Prompt tokens that are decoded along, unseen: spaces and characters may begin in them."""
_BROKEN = "\ufffd"
_MAX_BROKEN = 3
"""Replacement characters at the end that further tokens may still repair: a character has at most four bytes."""


class IncrementalDetokenizer:
    """Text of the generated tokens of one request, in the context of its prompt.

    All that `push` and `flush` return, laid end to end, is one decode of all ids less the text of the prompt, however
    the ids were cut into rounds. Special tokens have no text. (The tokenizers library has a `DecodeStream`, but one
    that begins within a character repeats the prompt, and it has nothing to flush.)

    Args:
        tokenizer: the target's.
        prompt_ids: ids of the prompt.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        # A window of the latest ids: decoding it anew with each token costs the same however long the text is.
        self._ids = list(prompt_ids[-_CONTEXT_TOKENS:])
        self._num_settled_ids = len(self._ids)
        # Characters of the window's text that were shown. A prompt that ends within one leaves it to the output.
        self._num_shown = _num_certain(tokenizer.decode(self._ids))

    def push(self, token_id: int) -> str:
        """Text that the next token makes certain; empty while it ends within a character."""
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids)
        shown, self._num_shown = self._num_shown, max(self._num_shown, _num_certain(text))
        if self._num_shown == len(text) > shown:
            del self._ids[: self._num_settled_ids]
            self._num_settled_ids = len(self._ids)
            window_text = self._tokenizer.decode(self._ids)
            self._num_shown = len(window_text)
            return text[shown:]
        return text[shown : self._num_shown]

    def flush(self) -> str:
        """What is left at the end: characters that were never completed."""
        text = self._tokenizer.decode(self._ids)
        shown, self._num_shown = self._num_shown, len(text)
        return text[shown:]


def _num_certain(text: str) -> int:
    """Characters that no further token can change."""
    num_broken = len(text) - len(text.rstrip(_BROKEN))
    return len(text) - min(num_broken, _MAX_BROKEN)

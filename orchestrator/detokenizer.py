"""From token ids to text as they come, without ever showing a broken character."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers.decoders import DecodeStream

_CONTEXT_TOKENS = 16
"""Prompt tokens that are decoded along, unseen: spaces and characters may begin in them."""
_BROKEN = "\ufffd"


class IncrementalDetokenizer:
    """Text of the generated tokens of one request, in the context of its prompt.

    All that `push` and `flush` return, laid end to end, is one decode of all ids less the text of the prompt, however
    the ids were cut into rounds. Special tokens have no text.

    Args:
        tokenizer: the target's.
        prompt_ids: ids of the prompt.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt_ids[-_CONTEXT_TOKENS:])
        self._stream = DecodeStream(ids=list(self._ids), skip_special_tokens=True)
        # A prompt that ends within a character leaves the rest of it, and so all of it, to the output.
        self._num_characters = len(tokenizer.decode(self._ids).rstrip(_BROKEN))
        self._has_pending = False

    def push(self, token_id: int) -> str:
        """Text that the next token makes certain; empty while it ends within a character."""
        self._ids.append(token_id)
        text = self._stream.step(self._tokenizer, token_id)
        self._has_pending = text is None
        if text is None:
            return ""
        self._num_characters += len(text)
        return text

    def flush(self) -> str:
        """What is left at the end: characters that were never completed."""
        if not self._has_pending:
            return ""
        self._has_pending = False
        return self._tokenizer.decode(self._ids)[self._num_characters :]

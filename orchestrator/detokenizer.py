"""From token ids to text as they come, without ever showing a broken character."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tokenizers

_BROKEN = "\ufffd"
"""What bytes that make no character are decoded to, and the first bytes of one that is not complete."""
_MAX_CHARACTER_TOKENS = 4
"""A character has at most four bytes, and a token at least one."""
_MAX_PENDING_TOKENS = 8
"""More tokens than this do not wait for one character: there are characters among them that will never be complete."""
_MIN_CONTEXT_TOKENS, _MAX_CONTEXT_TOKENS = 8, 512


class IncrementalDetokenizer:
    """Text of the generated tokens of one request, in the context of its prompt.

    All that `push` and `flush` return, laid end to end, is one decode of all ids less the text of the prompt, however
    the ids were cut into rounds. A character that the prompt begins and the output completes is part of the output.
    Special tokens have no text. Text that was returned is never taken back: if byte tokens that made characters turn
    out to belong to a run that is not UTF-8, the characters stay.

    Each token costs a decode of the few tokens since the last complete character and of those that made that one.
    (`tokenizers.decoders.DecodeStream` is not used: it shows the end of a prompt that ends within a character, raises
    on byte tokens that turn out to be invalid, and grows without bound on special tokens and on invalid bytes.)

    Args:
        tokenizer: the target's.
        prompt_ids: ids of the prompt.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = [token_id for token_id in _context(tokenizer, prompt_ids) if not self._is_special(token_id)]
        """Tokens whose text was returned, as context, and then the tokens that are pending."""
        self._text = tokenizer.decode(self._ids)
        """Of all of them."""
        self._num_settled = len(self._ids)
        """How many of them are context."""
        self._shown = self._text
        """What `_text` must start with; the rest is new."""
        self._broken_shown = self._text
        """The same as long as the last character of the prompt is not completed."""
        if self._text.endswith(_BROKEN):
            self._unsettle_prompt()

    def push(self, token_id: int) -> str:
        """Text that the next token makes certain; empty while there is none."""
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids)
        if text == self._text and self._is_special(token_id):
            self._ids.pop()
            return ""
        self._text = text
        if not text.startswith((self._shown, self._broken_shown)):
            # Byte tokens are decoded by whole runs, and this run is not complete, or never will be. What was shown of
            # it stays; the pending part of the run is decoded by itself.
            self._forget(self._num_settled)
            text = self._text
        if not text.endswith(_BROKEN):
            news = self._news(text)
            self._settle()
            return news
        complete = text.rstrip(_BROKEN)
        if len(complete) > len(self._shown) and complete.startswith(self._shown):
            # The token completed a character and began another: only the token itself can matter from here on.
            news = self._news(complete)
            self._forget(len(self._ids) - 1)
            num_broken = len(text) - len(complete)
            self._shown = self._broken_shown = self._text[: len(self._text) - num_broken]
            return news
        if len(self._ids) - self._num_settled > _MAX_PENDING_TOKENS:
            return self._release_broken()
        return ""

    def flush(self) -> str:
        """What is left at the end: characters that were never completed."""
        return self._news(self._text)

    def _news(self, text: str) -> str:
        """What `text`, from the start of the window, has beyond what was shown."""
        if text.startswith(self._broken_shown):
            return text[len(self._broken_shown) :]
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, self._broken_shown, strict=False))
        return text[max(sum(1 for _ in same), len(self._shown)) :]

    def _forget(self, num_tokens: int) -> None:
        """Decode without the first tokens from now on; what is left counts as pending and not shown."""
        del self._ids[:num_tokens]
        self._num_settled = 0
        self._text = self._tokenizer.decode(self._ids)
        self._shown = self._broken_shown = ""

    def _settle(self) -> None:
        """All the text was shown: what was pending is the context of what comes."""
        del self._ids[: self._num_settled]
        self._num_settled = len(self._ids)
        self._text = self._shown = self._broken_shown = self._tokenizer.decode(self._ids)

    def _release_broken(self) -> str:
        """Show pending bytes as broken characters, but for the last ones, which may still be completed."""
        for kept in range(_MAX_CHARACTER_TOKENS, _MAX_PENDING_TOKENS):
            text = self._tokenizer.decode(self._ids[:-kept])
            if text + self._tokenizer.decode(self._ids[-kept:]) == self._text:
                break
        else:
            kept, text = 0, self._text
        news = self._news(text)
        self._forget(len(self._ids) - kept)
        return news

    def _unsettle_prompt(self) -> None:
        """Take the last tokens of a prompt that ends within a character as pending."""
        complete = ""
        for num_pending in range(1, _MAX_CHARACTER_TOKENS):
            complete = self._tokenizer.decode(self._ids[:-num_pending])
            if not complete.endswith(_BROKEN):
                break
        self._num_settled = max(0, self._num_settled - num_pending)
        # Which is longer depends on whether a token can hold more than the character's bytes.
        self._shown = max(complete.rstrip(_BROKEN), self._text.rstrip(_BROKEN), key=len)

    def _is_special(self, token_id: int) -> bool:
        decode = self._tokenizer.decode
        return not decode([token_id]) and bool(decode([token_id], skip_special_tokens=False))


def _context(tokenizer: tokenizers.Tokenizer, prompt_ids: Sequence[int]) -> list[int]:
    """The end of the prompt, from the start of a character and with some text in it if possible."""
    num_tokens = _MIN_CONTEXT_TOKENS
    while num_tokens < min(len(prompt_ids), _MAX_CONTEXT_TOKENS):
        for length in range(num_tokens, num_tokens + _MAX_CHARACTER_TOKENS):
            ids = list(prompt_ids[-length:])
            if _begins_with_a_character(tokenizer, ids):
                return ids
        num_tokens *= 2
    return list(prompt_ids[-num_tokens:])


def _begins_with_a_character(tokenizer: tokenizers.Tokenizer, ids: list[int]) -> bool:
    # A run of byte tokens is broken from its first character on if it ends within one; so also try without its end.
    texts = (tokenizer.decode(ids[: len(ids) - num_cut]) for num_cut in range(_MAX_CHARACTER_TOKENS))
    return any(text and not text.startswith(_BROKEN) for text in texts)

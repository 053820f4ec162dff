"""The target's tokenizer: from text or a conversation to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers

from orchestrator.chat_template import ChatTemplate
from specdec.errors import InvalidArgumentError
from specdec.tokenizer_files import TokenizerFiles


class PromptTokenizer:
    """Turns prompts into ids. Everything here may be called from any thread."""

    def __init__(self, files: TokenizerFiles) -> None:
        self.backend: tokenizers.Tokenizer = files.tokenizer()
        """The tokenizer itself, for detokenizing."""
        # A tokenizer file may ask for truncation or padding, which would change prompts silently.
        self.backend.no_truncation()
        self.backend.no_padding()
        self._template = ChatTemplate(files.chat_template, files.special_tokens)
        self.max_token_bytes = max(len(token.encode()) for token in self.backend.get_vocab())
        """Longest token, as the vocabulary writes it; no fewer than the bytes of text it stands for."""

    def encode_text(self, text: str) -> list[int]:
        """Ids of a raw text, with the special tokens that the tokenizer adds by default (such as one at the start).

        Raises:
            InvalidArgumentError: the tokenizer has no token for some of the text.
        """
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation; the template writes the special tokens itself, and none are added.

        Raises:
            InvalidArgumentError: the model's template does not take these messages, or the tokenizer has no token for
                some of the text.
        """
        return self._encode(self._template.render(messages), add_special_tokens=False)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        # The library raises a bare Exception, if a tokenizer has no token for what it does not know.
        except Exception:  # noqa: BLE001
            raise InvalidArgumentError(
                "the model's tokenizer has no token for some characters of the prompt; send others, or token ids"
            ) from None

"""The frame that a chat template puts around a user's turn, as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from specdec.models.errors import ModelError, first_line
from specdec.tokenizer_files import TokenizerFiles

_USER_TEXT = "THE-USER-TEXT"


@dataclass(frozen=True)
class Conversation:
    """What stands before and behind a user's text.

    Without a chat template there are no turns: the text begins with the tokenizer's begin-of-text token.
    """

    tokenizer: Tokenizer
    files: TokenizerFiles
    opening: tuple[int, ...]
    """Up to where the user's text begins; at least one token."""
    turn_end: tuple[int, ...]
    """From the end of the user's text to where the answer begins; empty without a chat template."""

    @classmethod
    def of(cls, files: TokenizerFiles) -> Conversation:
        """The frame of a tokenizer's own chat template.

        Raises:
            ModelError: the template does not render a user's turn, or there is nothing to begin a text with.
        """
        tokenizer = files.tokenizer()
        if files.chat_template:
            before, found, behind = _render(files, _USER_TEXT).partition(_USER_TEXT)
            opening, turn_end = _encode(tokenizer, before), _encode(tokenizer, behind)
            if not (found and opening and turn_end):
                raise ModelError("the target's chat template puts no frame around a user's text; remove the template")
            return cls(tokenizer, files, opening, turn_end)
        for name in ("bos_token", "eos_token"):
            token_id = tokenizer.token_to_id(files.special_tokens.get(name, ""))
            if token_id is not None:
                return cls(tokenizer, files, (token_id,), ())
        raise ModelError(
            "the target's tokenizer has neither a chat template nor a begin-of-text token, so nothing can be sampled "
            "from it; add one of them"
        )

    def prompt(self, text: str) -> tuple[int, ...]:
        """A whole prompt, as the orchestrator would make it of that text."""
        if self.files.chat_template:
            return _encode(self.tokenizer, _render(self.files, text))
        return tuple(self.tokenizer.encode(text).ids) or self.opening


def _encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def _render(files: TokenizerFiles, text: str) -> str:
    conversation = [{"role": "user", "content": text}]
    try:
        render: Any = render_jinja_template
        rendered = render(
            conversations=[conversation],
            chat_template=files.chat_template,
            add_generation_prompt=True,
            **files.special_tokens,
        )
    except Exception as error:
        raise ModelError(
            f"the target's chat template cannot render a user's turn ({first_line(error)}); correct it"
        ) from error
    return str(rendered[0][0])

"""Renders a conversation with the model's own chat template, as transformers' `apply_chat_template` does."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.sandbox

from specdec.errors import InvalidArgumentError


class ChatTemplate:
    """A compiled template. Templates come with model files, so they run in a sandbox without access to anything.

    Args:
        source: Jinja source; empty if the model has none.
        special_tokens: bos_token, eos_token and so on, which templates may name.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self._template: jinja2.Template | None = None
        self._problem = "the model has no chat template; send text or token ids instead"
        if source:
            environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
                trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
            )
            environment.filters["tojson"] = _to_json
            environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
            try:
                self._template = environment.from_string(source)
            except jinja2.TemplateError as error:
                self._problem = f"the model's chat template is not valid Jinja (line {_line(error)}); send text instead"

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt text, up to where the assistant begins to answer.

        Args:
            messages: each with "role" and "content".

        Raises:
            InvalidArgumentError: there is no template, or it does not take these messages.
        """
        if self._template is None:
            raise InvalidArgumentError(self._problem)
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, tools=None, **self._special_tokens
            )
        except _TemplateRefusalError as error:
            raise InvalidArgumentError(f"the model's chat template refuses these messages: {error}") from error
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
            raise InvalidArgumentError(
                f"the model's chat template cannot render these messages ({type(error).__name__}); check their roles"
            ) from error


class _TemplateRefusalError(Exception):
    """What a template raises by `raise_exception`; the text is the template author's, not the client's."""


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRefusalError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    # Jinja's own filter escapes HTML, which prompts must not have.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _line(error: jinja2.TemplateError) -> int | str:
    return error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else "unknown"

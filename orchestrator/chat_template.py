"""Renders a conversation with the model's own chat template, as transformers' `apply_chat_template` does."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from specdec.errors import InvalidArgumentError


class ChatTemplate:
    """A compiled template.

    Templates come with model files, so they run in a sandbox: no files, no Python internals, no change to what they
    are given. It does not bound their time and memory (a single `range` ends at 100,000, but loops nest): in that a
    template is trusted like the model it came with, for it was the operator who chose both.

    Args:
        source: Jinja source; empty if the model has none.
        special_tokens: bos_token, eos_token and so on, which templates may name.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._template: jinja2.Template | None = None
        self._problem = "the model has no chat template; send text or token ids instead"
        if source:
            try:
                self._template = _environment().from_string(source)
            # Jinja compiles to Python, which objects too: to deep nesting, long numbers, a break outside loops.
            except Exception as error:  # noqa: BLE001
                line = f"line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else type(error).__name__
                self._problem = f"the model's chat template is not valid ({line}); send text or token ids instead"

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt text, up to where the assistant begins to answer.

        Args:
            messages: each with "role" and "content".

        Raises:
            InvalidArgumentError: there is no template, or it does not take these messages.
        """
        if self._template is None:
            raise InvalidArgumentError(self._problem)
        # What transformers passes: templates ask whether there are tools or documents.
        given = {"messages": list(messages), "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return self._template.render(self._special_tokens | given)
        except _TemplateRefusalError as error:
            refusal = "the model's chat template refuses these messages"
            # A text that the template puts together may hold parts of the conversation; one that it quotes does not.
            text = str(error)
            reason = f": {text}" if text and text in self._source else "; check their roles"
            raise InvalidArgumentError(refusal + reason) from None
        # Nothing but the template runs here, and it may raise anything; its words may hold parts of the conversation.
        except Exception as error:  # noqa: BLE001
            raise InvalidArgumentError(
                f"the model's chat template cannot render these messages ({type(error).__name__}); check their roles"
            ) from None


class _TemplateRefusalError(Exception):
    """What a template raises by `raise_exception`."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` ... `{% endgeneration %}` marks what an assistant wrote, for training. Here: just a block."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise _TemplateRefusalError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)  # noqa: DTZ005 - the day where the model is served, as elsewhere


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which prompts must not have.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

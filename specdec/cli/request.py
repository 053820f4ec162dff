"""From the options of `specdec generate` to a request."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from specdec.errors import InvalidArgumentError
from specdec.sampling.params import SamplingParams
from specdec.v1 import generation_pb2, model_pb2, sampling_pb2

_UINT32_MAX = 2**32 - 1
_MAX_STOP_STRINGS = 16


def build_request(
    *,
    prompt: str,
    system: str | None,
    chat: bool,
    max_new_tokens: int | None,
    num_draft_tokens: int | None,
    acceptance_rule: str | None,
    stop_strings: list[str],
    num_completions: int | None,
    tenant: str | None,
    sampling: dict[str, object],
) -> generation_pb2.GenerateRequest:
    """The request, with only those fields set that were given.

    Raises:
        typer.BadParameter: a value is out of range.
    """
    given: dict[str, Any] = {name: value for name, value in sampling.items() if value is not None}
    if len(stop_strings) > _MAX_STOP_STRINGS or "" in stop_strings:
        raise typer.BadParameter(f"at most {_MAX_STOP_STRINGS} stop strings, none of them empty")
    try:
        SamplingParams(**given)
        request = generation_pb2.GenerateRequest(
            sampling=sampling_pb2.SamplingParams(**given),
            max_new_tokens=max_new_tokens,
            stop_strings=stop_strings,
            num_draft_tokens=num_draft_tokens,
            num_completions=num_completions,
            tenant=tenant or "",
            acceptance_rule=model_pb2.AcceptanceRule.Value(
                f"ACCEPTANCE_RULE_{(acceptance_rule or 'unspecified').upper()}"
            ),
        )
    # The message's own fields are narrower than Python's numbers: a token id of -1 is a ValueError.
    except (InvalidArgumentError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if chat:
        if system is not None:
            request.chat.messages.add(role="system", content=system)
        request.chat.messages.add(role="user", content=prompt)
    else:
        request.text = prompt
    return request


def read_prompt(prompt: str) -> str:
    """The prompt, from standard input if it is "-".

    Raises:
        typer.BadParameter: it is not UTF-8 text.
    """
    data = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter("the prompt is not UTF-8 text") from error


def parse_num_draft_tokens(value: str) -> int | None:
    """A number, or None for "auto".

    Raises:
        typer.BadParameter: it is neither.
    """
    if value == "auto":
        return None
    if not value.isascii() or not value.isdigit() or int(value) > _UINT32_MAX:
        raise typer.BadParameter(f"--num-draft-tokens is {value!r}; it must be a number, or auto")
    return int(value)


def parse_logit_bias(entries: list[str] | None) -> dict[int, float] | None:
    """ID=BIAS entries as a mapping.

    Raises:
        typer.BadParameter: an entry is not one.
    """
    if not entries:
        return None
    try:
        return {int(token): float(bias) for token, bias in (entry.split("=", 1) for entry in entries)}
    except ValueError as error:
        raise typer.BadParameter("--logit-bias takes ID=BIAS, such as 198=-5") from error

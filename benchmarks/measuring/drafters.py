"""The drafters that a benchmark measures: any of those that services have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

import typer

from specdec.cli.drafter_kind import DrafterKind
from specdec.settings import DEFAULT_DRAFT_MODEL, DEFAULT_MODEL

KINDS = tuple(kind for kind in get_args(DrafterKind) if kind != "none")
WITH_MODEL = ("model", "combined")
ALL = "all"
HELP = f"{', '.join(KINDS)}, or {ALL}; may be repeated."


def parse_drafters(names: Sequence[str] | None, draft_model: str | None) -> tuple[DrafterKind, ...]:
    """The drafters that a command line asks for, each once, in its order.

    Args:
        names: as given; none: the model if there is a draft model, else prompt lookup.
        draft_model: as given.

    Raises:
        typer.BadParameter: a name is not that of a drafter, or the draft model is for none of them.
    """
    chosen: dict[str, None] = {}
    for name in names or (["model"] if draft_model else ["ngram"]):
        if name not in (*KINDS, ALL):
            raise typer.BadParameter(f"--drafter {name} is none of {HELP}")
        chosen |= dict.fromkeys(KINDS if name == ALL else (name,))
    if draft_model and not chosen.keys() & set(WITH_MODEL):
        raise typer.BadParameter(f"--draft-model does not go with --drafter {', '.join(chosen)}")
    return cast("tuple[DrafterKind, ...]", tuple(chosen))


def choose_draft_model(drafters: Sequence[DrafterKind], model: str, draft_model: str | None) -> str | None:
    """The draft model of the drafters that have one: as given, or the one that comes with the embedded target.

    Raises:
        typer.BadParameter: none comes with this target.
    """
    if draft_model or not set(drafters) & set(WITH_MODEL):
        return draft_model
    if model != DEFAULT_MODEL:
        raise typer.BadParameter(f"no draft model comes with {model}; give one with --draft-model")
    return DEFAULT_DRAFT_MODEL

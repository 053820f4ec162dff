"""The drafters that services started from the command line can have."""

from __future__ import annotations

from typing import Literal

import typer

DrafterKind = Literal["model", "ngram", "suffix", "combined", "none"]
"""As `specdec draft --drafter` has them; none: no draft service is started, and the orchestrator decodes plainly."""


def check_draft_model(drafter: DrafterKind | None, draft_model: str | None) -> None:
    """Refuse a draft model for a drafter that has none.

    Raises:
        typer.BadParameter: it is one.
    """
    if draft_model is not None and drafter not in (None, "model", "combined"):
        raise typer.BadParameter(f"--draft-model does not go with --drafter {drafter}")

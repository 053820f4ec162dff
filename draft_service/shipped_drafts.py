"""Drafts that come with this package: directories of `checkpoints/`, each known by its name."""

from __future__ import annotations

from pathlib import Path

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def shipped_drafts() -> dict[str, Path]:
    """The directory of each draft that is there, by its name."""
    return {path.name: path for path in sorted(CHECKPOINTS.glob("*")) if path.is_dir()}

"""Prompt files: JSON lines with `question_id`, `category` and `turns`; the first turn counts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from specdec.models.errors import ModelError


@dataclass(frozen=True)
class Prompt:
    """The first turn of a conversation."""

    category: str
    text: str


def read_prompts(path: Path) -> list[Prompt]:
    """All prompts of a file, in its order.

    Raises:
        ModelError: the file is not there or empty, or a line is not what it should be.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}); give a file of prompts") from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                entry = json.loads(line)
                prompts.append(Prompt(str(entry["category"]), str(entry["turns"][0])))
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise ModelError(
                    f"{path}, line {number}, is not an object with question_id, category and turns"
                ) from error
    if not prompts:
        raise ModelError(f"{path} has no prompts; give a file with at least one")
    return prompts

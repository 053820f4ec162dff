"""Prompts of a benchmark: JSON lines with `question_id`, `category` and `turns`, as Spec-Bench has them."""

import json
from dataclasses import dataclass
from pathlib import Path


class PromptFileError(Exception):
    """The file cannot be used; the message names the line."""


@dataclass(frozen=True)
class Prompt:
    """The first turn of a conversation."""

    question_id: str
    category: str
    text: str


def read_prompts(path: Path) -> list[Prompt]:
    """All prompts of a file, in its order.

    Raises:
        PromptFileError: the file is not there or empty, or a line is not what it should be.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptFileError(f"{path}: {error}") from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                entry = json.loads(line)
                prompts.append(Prompt(str(entry["question_id"]), str(entry["category"]), str(entry["turns"][0])))
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise PromptFileError(
                    f"{path}, line {number}: expected an object with question_id, category and turns"
                ) from error
    if not prompts:
        raise PromptFileError(f"{path}: no prompts")
    return prompts


def spread(prompts: list[Prompt], limit: int) -> list[Prompt]:
    """At most `limit` prompts, as evenly over the categories as their sizes allow, in the order of the file.

    The first categories get one more where it does not come out even; within a category the prompts are evenly spaced.
    """
    categories: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        categories.setdefault(prompt.category, []).append(index)
    counts = dict.fromkeys(categories, 0)
    left = min(limit, len(prompts))
    while left:
        for category, members in categories.items():
            if left and counts[category] < len(members):
                counts[category] += 1
                left -= 1
    chosen = [
        members[position * len(members) // counts[category]]
        for category, members in categories.items()
        for position in range(counts[category])
    ]
    return [prompts[index] for index in sorted(chosen)]

"""What became of a text on its way through faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from typing_extensions import Self


@dataclass(frozen=True)
class Difference:
    """Between a completion and the undisturbed one, in tokens; text that is wrong though all tokens are right, in
    characters."""

    num_lost: int = 0
    num_duplicated: int = 0
    num_changed: int = 0
    num_wrong_characters: int = 0

    def __bool__(self) -> bool:
        return bool(self.num_lost or self.num_duplicated or self.num_changed or self.num_wrong_characters)

    def __add__(self, other: Self) -> Difference:
        return Difference(
            self.num_lost + other.num_lost,
            self.num_duplicated + other.num_duplicated,
            self.num_changed + other.num_changed,
            self.num_wrong_characters + other.num_wrong_characters,
        )


def compare(expected: Sequence[int], expected_text: str, actual: Sequence[int], actual_text: str) -> Difference:
    """What is missing is lost; what is there twice in a row is duplicated; all else that differs is changed."""
    if list(expected) == list(actual):
        wrong = sum(max(ends - begins, to - since) for begins, ends, since, to in _changes(expected_text, actual_text))
        return Difference(num_wrong_characters=wrong)
    lost = duplicated = changed = 0
    for begins, ends, since, to in _changes(expected, actual):
        more = list(actual[since:to])
        if begins == ends and more in (
            list(actual[max(0, since - len(more)) : since]),
            list(actual[to : 2 * to - since]),
        ):
            duplicated += len(more)
        elif since == to:
            lost += ends - begins
        else:
            changed += max(ends - begins, to - since)
    return Difference(lost, duplicated, changed)


def _changes(expected: Sequence[object], actual: Sequence[object]) -> list[tuple[int, int, int, int]]:
    """Where they differ: from and to in the one, and in the other."""
    matcher = SequenceMatcher(None, expected, actual, autojunk=False)
    return [places for what, *places in matcher.get_opcodes() if what != "equal"]  # type: ignore[misc]

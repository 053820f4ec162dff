"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopScan(NamedTuple):
    """What a piece of text came to."""

    text: str
    """Text that can be shown now."""
    stop_string: str | None
    """The stop string that is now complete; its own text and what follows are never shown."""


class StopStringScanner:
    """Finds the first stop string in a text that comes in pieces, wherever it is cut.

    The first is the one that is complete first; of two complete at the same character, the longer. Text is held back
    only while it may still turn out to be part of a stop string.

    Args:
        stop_strings: none of them empty.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stop_strings = tuple(stop_strings)
        self._held = ""

    def push(self, text: str) -> StopScan:
        """Take the next piece."""
        if not self._stop_strings:
            return StopScan(text, None)
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stop_strings if (start := text.find(stop)) >= 0]
        if found:
            _, start, stop = min(found)
            self._held = ""
            return StopScan(text[:start], stop)
        held = max(_overlap(text, stop) for stop in self._stop_strings)
        self._held = text[len(text) - held :]
        return StopScan(text[: len(text) - held], None)

    def flush(self) -> str:
        """The text held back; at the end it is not part of a stop string after all."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0

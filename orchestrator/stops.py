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

    The first is the one that is complete first; of several complete at the same character, the longest. So the text
    shown never contains a stop string. Text is held back only while it is the beginning of a stop string.

    Args:
        stop_strings: none of them empty.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        # The longest first: it is the one to name if several are complete.
        self._searches = [_Search(stop_string) for stop_string in sorted(set(stop_strings), key=len, reverse=True)]
        self._held = ""

    def push(self, text: str) -> StopScan:
        """Take the next piece; nothing may follow once a stop string is complete."""
        if not self._searches:
            return StopScan(text, None)
        # Most text begins no stop string; to see that takes no loop over its characters.
        searches = [search for search in self._searches if search.num_matched or search.stop_string[0] in text]
        for position, character in enumerate(text if searches else "", start=1):
            for search in searches:
                if search.advance(character):
                    shown = (self._held + text[:position])[: -len(search.stop_string)]
                    self._held = ""
                    return StopScan(shown, search.stop_string)
        text = self._held + text
        num_shown = len(text) - max((search.num_matched for search in searches), default=0)
        self._held = text[num_shown:]
        return StopScan(text[:num_shown], None)

    def flush(self) -> str:
        """The text held back; at the end it is not part of a stop string after all."""
        held, self._held = self._held, ""
        return held


class _Search:
    """Knuth, Morris and Pratt's search: linear in the text, however text and stop string repeat themselves."""

    __slots__ = ("_fallback", "num_matched", "stop_string")

    def __init__(self, stop_string: str) -> None:
        self.stop_string = stop_string
        self.num_matched = 0
        """Characters of the stop string that the text so far ends with."""
        self._fallback = [0]
        """For each beginning of the stop string, the next shorter one that it ends with."""
        for character in stop_string[1:]:
            self._fallback.append(self._next(self._fallback[-1], character))

    def advance(self, character: str) -> bool:
        """Take the next character; whether it completes the stop string."""
        self.num_matched = self._next(self.num_matched, character)
        return self.num_matched == len(self.stop_string)

    def _next(self, num_matched: int, character: str) -> int:
        while num_matched and self.stop_string[num_matched] != character:
            num_matched = self._fallback[num_matched - 1]
        return num_matched + (self.stop_string[num_matched] == character)

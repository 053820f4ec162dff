"""How many draft tokens are asked for, by what has to be done for them."""

from __future__ import annotations

from typing import NamedTuple


class WindowSizes(NamedTuple):
    """Most draft tokens of one window. What lookup finds costs next to nothing, so more of it may be worth a try."""

    model: int
    """If a draft model makes the window."""
    lookup: int
    """If lookup does; at least `model`, as both cost the target the same."""
    steps: int = 0
    """Steps that the model may take; the other tokens are runners-up, which make the window a tree. 0: a chain."""

    @property
    def largest(self) -> int:
        """Most of either; 0: no proposal is wanted."""
        return max(self.model, self.lookup)

    def at_most(self, limit: int) -> WindowSizes:
        """The same, cut to a limit."""
        return self if max(self) <= limit else WindowSizes(*(min(size, limit) for size in self))


NO_TOKENS = WindowSizes(0, 0)
"""Plain decoding."""

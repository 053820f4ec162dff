"""How much prefill goes into a pass beside running sequences, so that their tokens keep coming."""

from __future__ import annotations

_STRETCH = 2.0
"""A pass with prefill may take so many times as long as one without."""
_FIRST_ROWS = 32
_FEWEST_ROWS = 8
_LARGEST_STEP = 1.5
"""From one pass to the next. A stall of the machine says nothing of rows, so no single pass is believed entirely."""
_RATE = 0.2
"""Weight of one pass in the time that passes without prefill take."""


class PrefillPace:
    """Chooses the rows of prefill by what passes take: those without any, and what the last one with some took more.

    Args:
        max_rows: most rows of a pass.
        fixed_rows: always so many; 0: by the times.
    """

    def __init__(self, max_rows: int, fixed_rows: int = 0) -> None:
        self._max_rows = max_rows
        self._is_fixed = fixed_rows > 0
        self._rows = float(min(fixed_rows or _FIRST_ROWS, max_rows))
        self._plain_seconds: float | None = None

    def rows(self) -> int:
        """Most rows of prefill in a pass beside running sequences."""
        return int(self._rows)

    def observe(self, seconds: float, num_running_rows: int, num_prefill_rows: int) -> None:
        """A pass took so long.

        Args:
            seconds: its duration.
            num_running_rows: rows of running sequences.
            num_prefill_rows: rows of prefill.
        """
        if num_running_rows == 0:
            return
        plain = self._plain_seconds
        if num_prefill_rows == 0:
            if plain is None:
                self._plain_seconds = seconds
            else:
                believed = min(max(seconds, plain / _LARGEST_STEP), plain * _LARGEST_STEP)
                self._plain_seconds = plain + _RATE * (believed - plain)
        # The last chunk of a prompt may be too small to tell.
        elif plain is not None and not self._is_fixed and 2 * num_prefill_rows >= self._rows:
            most_added = (_STRETCH - 1) * plain
            step = most_added / max(seconds - plain, most_added / _LARGEST_STEP)
            rows = num_prefill_rows * max(step, 1 / _LARGEST_STEP)
            self._rows = min(max(rows, float(_FEWEST_ROWS)), float(self._max_rows))

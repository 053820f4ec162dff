"""What the next forward pass takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from specdec.engine.pace import PrefillPace


class Pending(Protocol):
    """A round that waits for a forward pass."""

    @property
    def num_uncached_tokens(self) -> int:
        """Known tokens without keys and values, at least one; these may be spread over several passes."""

    @property
    def num_window_rows(self) -> int:
        """Draft tokens to be verified; they and the last uncached token are run together."""

    @property
    def is_prefill(self) -> bool:
        """Whether more is uncached than a round leaves behind: the prompt, or all tokens of a cache that was lost."""


PendingT = TypeVar("PendingT", bound=Pending)


class Share(NamedTuple, Generic[PendingT]):
    """A round's part of a forward pass."""

    pending: PendingT
    num_rows: int
    """All rows left, so that the round ends with this pass, or a chunk of its prefill."""
    finishes: bool


class PassRows(NamedTuple):
    """Rows of a pass by kind."""

    running: int
    prefill: int

    @property
    def total(self) -> int:
        """Of both kinds."""
        return self.running + self.prefill

    @classmethod
    def of(cls, shares: Iterable[Share[PendingT]]) -> PassRows:
        """Count them; before the pass, since it may end a prefill."""
        counts = [0, 0]
        for share in shares:
            counts[share.pending.is_prefill] += share.num_rows
        return cls(*counts)


def plan_pass(
    waiting: Iterable[PendingT], max_rows: int, prefill_rows: int | None = None, *, prefill_first: bool = False
) -> list[Share[PendingT]]:
    """Choose the rows of the next pass from the pending rounds, the longest waiting of each kind first.

    Running sequences come before those that prefill; a prefill too long for what is left of the pass gets a chunk. A
    window is never split; one that does not fit waits for the next pass. At least one row is chosen.

    Args:
        waiting: rounds without an answer.
        max_rows: most rows of a pass; no smaller than the largest window and one committed token.
        prefill_rows: most rows of all prefills in this pass, at least 1; None: whatever is left. The end of a prefill
            takes its window along even if that is more.
        prefill_first: the first prefill comes before all running sequences: it was passed over.
    """
    prefill_room = max_rows if prefill_rows is None else prefill_rows
    return _plan(*_by_kind(waiting), max_rows, prefill_room, prefill_first=prefill_first)


def _by_kind(waiting: Iterable[PendingT]) -> tuple[list[PendingT], list[PendingT]]:
    """Running sequences, and prefills."""
    running: list[PendingT] = []
    prefills: list[PendingT] = []
    for pending in waiting:
        (prefills if pending.is_prefill else running).append(pending)
    return running, prefills


def _plan(
    running: list[PendingT], prefills: list[PendingT], room: int, prefill_room: int, *, prefill_first: bool
) -> list[Share[PendingT]]:
    """As `plan_pass`."""
    num_first = min(len(prefills), 1 if prefill_first else 0)
    num_running = len(running)
    shares: list[Share[PendingT]] = []
    for number, pending in enumerate((*prefills[:num_first], *running, *prefills[num_first:])):
        is_prefill = not num_first <= number < num_first + num_running
        most = room
        if is_prefill:
            most = min(room, max(prefill_room, 1 + pending.num_window_rows)) if prefill_room > 0 else 0
        num_rows = pending.num_uncached_tokens + pending.num_window_rows
        finishes = num_rows <= most
        if not finishes:
            num_rows = min(most, pending.num_uncached_tokens - 1)
            if num_rows < 1:
                continue
        shares.append(Share(pending, num_rows, finishes))
        room -= num_rows
        if is_prefill:
            prefill_room -= num_rows
        if room == 0:
            break
    return shares


class Scheduler:
    """Plans pass after pass, so that running sequences keep a steady pace and no prefill starves.

    Running sequences come first. A prefill that got less than half of what it may have goes first in the next pass.

    Args:
        max_rows: most rows of a pass.
        prefill_chunk_rows: most rows of prefill beside running sequences; 0: by what passes take.
    """

    def __init__(self, max_rows: int, prefill_chunk_rows: int = 0) -> None:
        self._max_rows = max_rows
        self._pace = PrefillPace(max_rows, prefill_chunk_rows)
        self._is_prefill_overdue = False

    def plan(self, waiting: Sequence[PendingT], *, is_anybody_running: bool) -> list[Share[PendingT]]:
        """Choose the rows of the next pass.

        Args:
            waiting: rounds without an answer, the longest waiting of each kind first.
            is_anybody_running: whether sequences that are not among them are about to come back with a round.
        """
        running, prefills = _by_kind(waiting)
        if not prefills:
            return _plan(running, prefills, self._max_rows, self._max_rows, prefill_first=False)
        first = prefills[0]
        most = self._pace.rows() if is_anybody_running or running else self._max_rows
        shares = _plan(running, prefills, self._max_rows, most, prefill_first=self._is_prefill_overdue)
        num_prefill_rows = PassRows.of(shares).prefill
        due = min(first.num_uncached_tokens + first.num_window_rows, most)
        self._is_prefill_overdue = num_prefill_rows < max(due // 2, 1)
        return shares

    def observe(self, seconds: float, rows: PassRows) -> None:
        """A pass of so many rows took so long."""
        self._pace.observe(seconds, rows.running, rows.prefill)

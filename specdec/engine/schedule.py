"""What the next forward pass takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar


class Pending(Protocol):
    """A round that waits for a forward pass."""

    @property
    def num_uncached_tokens(self) -> int:
        """Known tokens without keys and values, at least one; these may be spread over several passes."""

    @property
    def num_window_rows(self) -> int:
        """Draft tokens to be verified; they and the last uncached token are run together."""

    @property
    def is_open(self) -> bool:
        """Whether the sequence is still to be prefilled for the first time."""


PendingT = TypeVar("PendingT", bound=Pending)


class Share(NamedTuple, Generic[PendingT]):
    """A round's part of a forward pass."""

    pending: PendingT
    num_rows: int
    """All rows left, so that the round ends with this pass, or a chunk of its prefill."""
    finishes: bool


def plan_pass(waiting: Iterable[PendingT], max_rows: int) -> list[Share[PendingT]]:
    """Choose the rows of the next pass from the pending rounds, which come in order of arrival.

    Running sequences come before those that still prefill; a prefill too long for what is left of the pass gets a
    chunk. A window is never split; one that does not fit waits for the next pass. At least one row is chosen.

    Args:
        waiting: rounds without an answer.
        max_rows: most rows of a pass; no smaller than the largest window and one committed token.
    """
    shares: list[Share[PendingT]] = []
    room = max_rows
    for pending in sorted(waiting, key=lambda pending: pending.is_open):
        needed = pending.num_uncached_tokens + pending.num_window_rows
        if needed <= room:
            shares.append(Share(pending, needed, finishes=True))
        else:
            chunk = min(room, pending.num_uncached_tokens - 1)
            if chunk < 1:
                continue
            shares.append(Share(pending, chunk, finishes=False))
        room -= shares[-1].num_rows
        if room == 0:
            break
    return shares

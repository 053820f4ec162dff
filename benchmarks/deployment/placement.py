"""Which CPUs each process gets."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """CPUs by their numbers; an empty set leaves a process wherever the system puts it."""

    target: frozenset[int] = frozenset()
    draft: frozenset[int] = frozenset()
    rest: frozenset[int] = frozenset()
    """Of the orchestrator, and of the clients."""

    def to_json(self) -> dict[str, list[int]]:
        """As JSON values."""
        return {
            "target": sorted(self.target),
            "draft": sorted(self.draft),
            "orchestrator_and_clients": sorted(self.rest),
        }


NOT_PINNED = Placement()


def pinned_placement(available: frozenset[int] | None = None) -> Placement:
    """One CPU for the target and one for the draft; all others for the rest, or the draft's if there are no others.

    The target is what must not be disturbed. With one CPU there is nothing to divide.

    Args:
        available: None: what this process may use.
    """
    cpus = sorted(available if available is not None else os.sched_getaffinity(0))
    if len(cpus) < 2:
        return NOT_PINNED
    target, draft, *others = cpus
    return Placement(frozenset([target]), frozenset([draft]), frozenset(others or [draft]))

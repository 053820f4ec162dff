"""The parts of a round, in the order in which they are drawn, and how much of each was waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a round."""

    name: str
    """As in the table of names, `specdec.round.part`."""
    label: str
    letter: str
    """Stands for it where there are no colours."""


PARTS = (
    Part("draft_queue", "draft queue", "d"),
    Part("draft_compute", "drafting", "D"),
    Part("network", "network", "~"),
    Part("target_queue", "target queue", "t"),
    Part("target_compute", "verification", "T"),
    Part("waiting", "orchestrator", "."),
    Part("unknown", "not split", "?"),
)
"""All of them. The last one is for a round that ended before its parts were known."""

_BEFORE_IT_WAS_WAITED_FOR = (("draft_queue", "draft_compute"), ("target_queue", "target_compute"))


@dataclass(frozen=True, slots=True)
class Durations:
    """Where the wall time of a round went, in seconds."""

    parts: Mapping[str, float]
    """By name of the part; together the wall time. What is 0 is left out."""
    hidden_seconds: float = 0.0
    """Work of the services for this round that was done before anybody waited for it."""


def durations(wall_seconds: float, measured: Mapping[str, float]) -> Durations:
    """Parts that add up to the round.

    What was measured may be more: a service may have been at work while the round before was still running. That much
    was hidden; it is taken from drafting first, and there from its beginning. If it is less, the rest is the
    orchestrator's.

    Args:
        wall_seconds: of the round.
        measured: seconds by name of the part.
    """
    if not measured:
        return Durations({"unknown": wall_seconds} if wall_seconds > 0 else {})
    parts = {part.name: max(0.0, measured.get(part.name, 0.0)) for part in PARTS}
    excess = sum(parts.values()) - wall_seconds
    if excess <= 0:
        parts["waiting"] -= excess
        return Durations(_without_zeros(parts))
    hidden = 0.0
    for names in _BEFORE_IT_WAS_WAITED_FOR:
        for name in names:
            taken = min(excess, parts[name])
            parts[name] -= taken
            hidden += taken
            excess -= taken
    # Clocks of two processes do not agree to the last microsecond.
    for name in ("network", "waiting"):
        taken = min(excess, parts[name])
        parts[name] -= taken
        excess -= taken
    return Durations(_without_zeros(parts), hidden)


def _without_zeros(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds for name, seconds in parts.items() if seconds > 0}

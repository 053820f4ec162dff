"""What goes wrong, to whom, for how long and when: all of it from one seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from tests.chaos.member import Part

Class = Literal["target", "draft", "orchestrator", "client"]
"""Faults of a class come one after the other, so that of two replicas one is well. Those of different classes meet."""


class Kind(Enum):
    """What is done."""

    KILL = "kill -9"
    FREEZE = "SIGSTOP"
    DRAIN = "SIGTERM"
    CUT_LINK = "link cut"
    FREEZE_LINK = "link frozen"
    SLOW_LINK = "link slow"
    CANCEL = "cancel"


_WEIGHTS: dict[Class, float] = {"target": 5, "draft": 4, "orchestrator": 3, "client": 1}
_KINDS: dict[Kind, tuple[float, float, float]] = {
    # How often, and the shortest and the longest time that it lasts, in seconds.
    Kind.KILL: (3, 0.0, 1.0),
    Kind.FREEZE: (2, 0.2, 4.0),
    Kind.DRAIN: (2, 0.0, 0.5),
    Kind.CUT_LINK: (3, 0.0, 1.0),
    Kind.FREEZE_LINK: (2, 0.2, 4.0),
    Kind.SLOW_LINK: (2, 0.5, 3.0),
}
_SLOW_RTT_SECONDS = (0.05, 0.4)


@dataclass(frozen=True)
class Fault:
    """One of them."""

    number: int
    kind: Kind
    of: Class
    after_deltas: int
    """How many rounds the clients have seen, in all, when it comes."""
    victim: int
    """Which of its class, modulo how many there are."""
    hold_seconds: float
    """How long the victim stays dead or frozen, or the link bad."""
    rtt_seconds: float = 0.0
    """Of a slow link; its jitter is half of that."""

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.of}: {self.kind.value}"


def plan_faults(
    number: int, seed: int, parts: Sequence[Part], rounds_between: float, *, num_targets: int
) -> list[Fault]:
    """Draw them.

    Args:
        number: how many.
        seed: the same one gives the same faults.
        parts: kinds of processes that there are.
        rounds_between: mean number of rounds of all clients from one to the next.
        num_targets: with one alone nothing is done to it: there would be nobody to go on with.
    """
    rng = random.Random(seed)
    classes: list[Class] = [part for part in parts if part != "target" or num_targets > 1]
    classes.append("client")
    faults: list[Fault] = []
    after = 0.0
    for index in range(number):
        after += rng.expovariate(1 / rounds_between)
        of = rng.choices(classes, [_WEIGHTS[each] for each in classes])[0]
        if of == "client":
            kind, hold = Kind.CANCEL, 0.0
        else:
            kind = rng.choices(list(_KINDS), [weight for weight, _, _ in _KINDS.values()])[0]
            hold = rng.uniform(*_KINDS[kind][1:])
        rtt = rng.uniform(*_SLOW_RTT_SECONDS) if kind is Kind.SLOW_LINK else 0.0
        faults.append(Fault(index, kind, of, round(after), rng.randrange(1 << 30), hold, rtt))
    return faults

"""What a wrong variant is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Check = Callable[[], None]
Apply = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Sabotage:
    """A wrong variant of the production code."""

    name: str
    apply: Apply
    """Switches it on."""
    caught_by: tuple[Check, ...]
    """Checks that fail while it is on."""


def sabotage(*caught_by: Check) -> Callable[[Apply], Sabotage]:
    """Make a variant of the function that switches it on, with the checks that must fail."""
    return lambda apply: Sabotage(apply.__name__, apply, caught_by)

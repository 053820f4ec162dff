"""How long silence is taken for work."""

from __future__ import annotations

import math

from orchestrator.links.patience import Patience


def test_nothing_is_known_before_the_first_answer() -> None:
    patience = Patience(1.5)
    assert patience.round_seconds() == math.inf
    assert patience.open_seconds(10) == math.inf


def test_rounds_are_waited_for_by_the_slowest_of_late() -> None:
    patience = Patience(1.5)
    patience.answered(0.01)
    assert patience.round_seconds() == 1.5
    patience.answered(1.0)
    assert patience.round_seconds() == 8.0
    for _ in range(200):
        patience.answered(0.01)
    assert patience.round_seconds() == 1.5


def test_opens_are_waited_for_by_their_tokens() -> None:
    patience = Patience(1.5)
    patience.opened(0.0, 0)
    assert patience.open_seconds(100) == math.inf
    patience.opened(1.0, 100)
    assert patience.open_seconds(1) == 1.5
    assert patience.open_seconds(1000) == 80.0
    patience.answered(1.0)
    assert patience.open_seconds(1000) == 88.0

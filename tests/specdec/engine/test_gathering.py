"""Who is waited for, and for how long."""

from __future__ import annotations

import pytest

from specdec.engine.gathering import Gathering


def gathering(pass_seconds: float, *usual: float) -> Gathering:
    """Sequences 0, 1, ... that have come back once, each after its usual time, and are answered again at 100 s."""
    it = Gathering()
    it.passed(pass_seconds)
    for sequence, seconds in enumerate(usual):
        it.answered(sequence, 50.0)
        it.returned(sequence, 50.0 + seconds)
        it.answered(sequence, 100.0)
    return it


def test_those_who_come_back_at_once_are_waited_for_until_the_last_is_there() -> None:
    it = gathering(0.1, 0.002, 0.004)
    assert it.wait_seconds(100.0) == pytest.approx(0.009)
    it.returned(1, 100.003)
    assert it.wait_seconds(100.003) == pytest.approx(0.002)
    it.returned(0, 100.004)
    assert it.wait_seconds(100.004) == 0.0


def test_who_does_not_come_is_given_up() -> None:
    it = gathering(0.1, 0.002)
    assert it.wait_seconds(100.006) == 0.0
    assert it.wait_seconds(100.0) == 0.0


@pytest.mark.parametrize(("pass_seconds", "usual"), [(0.1, 0.03), (0.01, 0.003), (0.0, 0.0001)])
def test_who_takes_longer_than_a_fraction_of_a_pass_is_not_waited_for(pass_seconds: float, usual: float) -> None:
    assert gathering(pass_seconds, usual).wait_seconds(100.0) == 0.0


def test_who_is_new_or_gone_is_not_waited_for() -> None:
    it = gathering(0.1, 0.002)
    it.left(0)
    it.left(0)
    it.answered("new", 100.0)
    assert it.wait_seconds(100.0) == 0.0
    it.returned(0, 100.001)
    it.returned("never answered", 100.001)
    assert it.wait_seconds(100.0) == 0.0


def test_what_is_usual_changes() -> None:
    it = gathering(1.0, 0.002)
    for _ in range(30):
        it.returned(0, 100.1)
        it.answered(0, 100.0)
    assert it.wait_seconds(100.0) == pytest.approx(0.2, abs=0.01)
    it.passed(2.0)
    assert it.wait_seconds(100.0) == pytest.approx(0.2, abs=0.01)

"""Pauses after failures of the draft service."""

import time

import pytest

from orchestrator.rest import Rest


class Clock:
    """In place of `time.perf_counter`; stands still but for what is added."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def until_over(self, resting: Rest) -> float:
        """Let time pass until the rest is over; returns how much."""
        for quarters in range(1000):
            if resting.is_over:
                return 0.25 * quarters
            self.now += 0.25
        raise AssertionError("it rests for ever")


def pauses(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> list[float]:
    """How long each failure in a row makes it rest."""
    clock, resting, found = Clock(monkeypatch), Rest(), []
    for seconds_lost in losses:
        resting.failed(seconds_lost)
        found.append(clock.until_over(resting))
    return found


def test_each_failure_in_a_row_doubles_the_pause_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses(monkeypatch, [0.0] * 10)[:4] == [0.25, 0.5, 1.0, 2.0]
    assert pauses(monkeypatch, [0.0] * 14)[-1] == 60.0


def test_what_was_waited_for_in_vain_is_paid_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses(monkeypatch, [2.0]) == [32.0]


def test_an_answer_ends_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, resting = Clock(monkeypatch), Rest()
    for _ in range(5):
        resting.failed(0.0)
    resting.worked()
    resting.failed(0.0)
    assert clock.until_over(resting) == 0.25

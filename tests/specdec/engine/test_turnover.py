"""When a place is likely to be free."""

from __future__ import annotations

from collections.abc import Iterator

from specdec.engine.turnover import Turnover


def clock(*seconds: float) -> Turnover:
    times: Iterator[float] = iter(seconds)
    return Turnover(lambda: next(times))


def test_nothing_is_known_at_first() -> None:
    assert Turnover().wait_seconds(0) == 1.0
    assert Turnover().wait_seconds(3) == 4.0


def test_the_mean_stay_shared_by_those_who_may_leave() -> None:
    turnover = clock(0.0, 0.0, 1.0, 8.0)
    for guest in ("a", "b", "c"):
        turnover.begin(guest)
    turnover.end("a")
    # 8 s a stay, two guests: one leaves every 4 s.
    assert turnover.wait_seconds(0) == 4.0
    assert turnover.wait_seconds(2) == 12.0


def test_later_stays_move_the_mean() -> None:
    turnover = clock(0.0, 10.0, 10.0, 10.0, 12.0)
    turnover.begin("a")
    turnover.end("a")
    turnover.begin("b")
    turnover.begin("c")
    turnover.end("b")
    assert turnover.wait_seconds(0) == 10.0 - 0.8


def test_it_is_never_at_once_and_ending_twice_is_harmless() -> None:
    turnover = clock(0.0, 0.001, 5.0)
    turnover.begin("a")
    turnover.end("a")
    turnover.end("a")
    turnover.end(None)
    assert turnover.wait_seconds(0) == 0.05

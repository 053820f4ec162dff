"""Who is waited for, and for how long."""

from __future__ import annotations

import heapq

import pytest

from specdec.engine.gathering import Gathering


def gathering(pass_seconds: float, *usual: float) -> Gathering:
    """Sequences 0, 1, ... that have come back once, each after its usual time, and are answered again at 100 s."""
    it = Gathering()
    for sequence, seconds in enumerate(usual):
        it.answered(sequence, 50.0)
        it.returned(sequence, 50.0 + seconds)
        it.answered(sequence, 100.0)
    it.passed(pass_seconds)
    return it


def test_those_who_come_back_at_once_are_waited_for_until_the_last_is_there() -> None:
    it = gathering(0.1, 0.002, 0.004)
    assert it.wait_seconds(100.0, 1) == pytest.approx(0.010)
    it.returned(0, 100.002)
    assert it.wait_seconds(100.003, 2) == pytest.approx(0.007)
    it.returned(1, 100.004)
    assert it.wait_seconds(100.004, 3) == 0.0


def test_who_does_not_come_is_given_up() -> None:
    it = gathering(0.1, 0.002)
    assert it.wait_seconds(100.0, 1) > 0.0
    assert it.wait_seconds(100.007, 1) == 0.0
    it.passed(0.1)
    assert it.wait_seconds(100.007, 1) == 0.0


@pytest.mark.parametrize(
    ("pass_seconds", "usual", "num_waiting", "is_waited_for"),
    [
        (0.1, 0.049, 1, True),
        (0.1, 0.051, 1, False),
        # Each of nine loses the wait; the one who is late gains what is left of the pass.
        (0.1, 0.009, 9, True),
        (0.1, 0.011, 9, False),
        (0.0, 0.0001, 1, False),
    ],
)
def test_the_gain_of_those_who_are_missing_is_weighed_against_the_loss_of_those_who_are_there(
    pass_seconds: float, usual: float, num_waiting: int, is_waited_for: bool
) -> None:
    assert (gathering(pass_seconds, usual).wait_seconds(100.0, num_waiting) > 0) == is_waited_for


def test_who_takes_long_is_left_behind_and_the_others_are_waited_for() -> None:
    it = gathering(0.1, 0.004, 0.09)
    assert it.wait_seconds(100.0, 2) == pytest.approx(0.010)
    it.returned(0, 100.004)
    assert it.wait_seconds(100.004, 3) == 0.0


def test_who_is_new_or_gone_is_not_waited_for() -> None:
    it = gathering(0.1, 0.002)
    assert it.wait_seconds(100.0, 1) > 0.0
    it.left(0)
    it.left(0)
    assert it.wait_seconds(100.0, 1) == 0.0
    it.answered("new", 100.0)
    it.passed(0.1)
    assert it.wait_seconds(100.0, 1) == 0.0
    it.returned(0, 100.001)
    it.returned("never answered", 100.001)
    assert it.wait_seconds(100.0, 1) == 0.0


def test_what_is_usual_changes() -> None:
    it = gathering(1.0, 0.002)
    for _ in range(30):
        it.returned(0, 100.1)
        it.answered(0, 100.0)
    it.passed(1.0)
    assert it.wait_seconds(100.0, 1) == pytest.approx(0.2, abs=0.01)


def rounds_per_second(pauses: list[float], fixed_seconds: float, each_seconds: float, *, waits: bool) -> float:
    """A target, and sequences that come back after a pause of their own; simulated."""
    it = Gathering()
    now, rounds, duration = 0.0, 0, 20.0
    arrivals = [(0.001 * sequence, sequence) for sequence in range(len(pauses))]
    heapq.heapify(arrivals)
    waiting: list[int] = []
    while now < duration:
        while arrivals and arrivals[0][0] <= now:
            moment, sequence = heapq.heappop(arrivals)
            it.returned(sequence, moment)
            waiting.append(sequence)
        next_arrival = arrivals[0][0] if arrivals else duration
        if not waiting:
            now = next_arrival
            continue
        patience = it.wait_seconds(now, len(waiting)) if waits else 0.0
        if patience > 0:
            now = min(now + patience, next_arrival)
            continue
        now += fixed_seconds + each_seconds * len(waiting)
        it.passed(fixed_seconds, each_seconds)
        for sequence in waiting:
            it.answered(sequence, now)
            heapq.heappush(arrivals, (now + pauses[sequence], sequence))
        rounds += len(waiting)
        waiting = []
    return rounds / now


@pytest.mark.parametrize(
    ("pauses", "each_seconds", "expected"),
    [
        ([0.003] * 16, 0.0, 16 / 0.103),
        # All draft: passes of half of them each would take turns.
        ([0.04] * 16, 0.0, 16 / 0.14),
        # One that drafts long among some that do not: they go on without it.
        ([0.003] * 3 + [0.08], 0.0, 3 / 0.103),
        # Where sequences cost more than passes, halves that take turns hide the drafting.
        ([0.04] * 16, 0.02, 16 / 0.52),
    ],
)
def test_a_target_serves_as_much_as_it_can(pauses: list[float], each_seconds: float, expected: float) -> None:
    together = rounds_per_second(pauses, 0.1, each_seconds, waits=True)
    assert together >= 0.97 * expected
    assert together >= 0.99 * rounds_per_second(pauses, 0.1, each_seconds, waits=False)


@pytest.mark.parametrize(("pause", "passes"), [(0.004, [16]), (0.03, [8])])
def test_halves_that_take_turns_become_one_where_that_is_quicker(pause: float, passes: list[int]) -> None:
    """As after a trial of drafts that are given up: each half is back before the pass of the other is over."""
    it = Gathering()
    arrivals = [(0.03 * (sequence % 2), sequence) for sequence in range(16)]
    now, waiting, sizes = 0.0, list[int](), list[int]()
    while len(sizes) < 40:
        for moment, sequence in sorted(arrival for arrival in arrivals if arrival[0] <= now):
            it.returned(sequence, moment)
            waiting.append(sequence)
        arrivals = [arrival for arrival in arrivals if arrival[0] > now]
        patience = it.wait_seconds(now, len(waiting)) if waiting else 1.0
        if patience > 0:
            now = min([now + patience, *(moment for moment, _ in arrivals)])
            continue
        now += 0.016 + 0.005 * len(waiting)
        it.passed(0.016, 0.005)
        for sequence in waiting:
            it.answered(sequence, now)
            arrivals.append((now + pause, sequence))
        sizes.append(len(waiting))
        waiting = []
    assert sorted(set(sizes[20:])) == passes


def test_what_each_sequence_adds_to_a_pass_is_lost_by_those_who_are_there() -> None:
    it = gathering(0.1, 0.01)
    it.passed(0.1, 0.0)
    assert it.wait_seconds(100.0, 4) > 0
    for _ in range(30):
        it.passed(0.1, 0.02)
    assert it.wait_seconds(100.0, 4) == 0.0

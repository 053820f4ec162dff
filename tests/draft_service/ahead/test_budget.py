"""How much may be drafted ahead: all while the drafter is idle, nothing while others keep it busy."""

from __future__ import annotations

from draft_service.ahead.budget import AheadBudget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def worked(share: float, seconds: float = 5.0) -> tuple[AheadBudget, Clock]:
    """A budget of 16 rows, after so much of the time went into proposals."""
    clock = Clock()
    budget = AheadBudget(16, clock)
    for _ in range(int(seconds / 0.01)):
        clock.now += 0.01
        budget.worked(share * 0.01)
    return budget, clock


def test_an_idle_drafter_may_use_all_of_it() -> None:
    budget, _ = worked(0.0)
    assert (budget.rows(1), budget.rows(8)) == (16, 16)


def test_one_that_serves_many_withdraws() -> None:
    budget, _ = worked(0.9)
    assert budget.rows(8) == 0
    half, _ = worked(0.25)
    assert 0 < half.rows(8) < 16


def test_a_sequence_that_is_alone_does_not_stand_in_its_own_way() -> None:
    budget, _ = worked(0.9)
    assert budget.rows(1) == 16
    assert budget.rows(0) == 0


def test_it_comes_back_when_the_others_are_gone() -> None:
    budget, clock = worked(0.9)
    clock.now += 3.0
    assert budget.rows(8) >= 15


def test_nothing_is_nothing() -> None:
    assert AheadBudget(0, Clock()).rows(1) == 0

"""Turns in which all requests have windows of one shape."""

import itertools

import pytest

from orchestrator.round_costs import RoundCosts
from orchestrator.shared_window import SharedWindow
from orchestrator.window_shape import NO_WINDOW, WindowShape
from specdec.v1 import model_pb2
from tests.orchestrator.made_rounds import made_round

NUM_REQUESTS = 4


def shared_window() -> SharedWindow:
    """Where a draft token costs half of what a round costs without any."""
    costs = RoundCosts()
    points = [(1, 100_000), (101, 100_001)]
    costs.announce(
        model_pb2.ModelInfo(forward_costs=[model_pb2.ForwardCost(rows=rows, microseconds=us) for rows, us in points])
    )
    costs.observe(made_round(1, 0, draft_seconds=0.05))
    return SharedWindow(costs)


def turns(shared: SharedWindow, count: int, *, is_accepted: bool) -> list[WindowShape]:
    """The shapes of so many turns; all requests must get the same."""
    shapes, last = [], [0] * NUM_REQUESTS
    for _ in range(count):
        chosen = []
        for request in range(NUM_REQUESTS):
            chosen.append(shared.choose(last[request], 8, ()))
            last[request] = shared.turn
        assert len(set(chosen)) == 1
        shapes.append(chosen[0])
        for shape in chosen:
            if shape.num_steps:
                shared.observe(made_round(shape.num_steps, shape.num_steps if is_accepted else 0))
    return shapes


def test_good_drafts_are_taken_by_all() -> None:
    assert all(shape.num_steps for shape in turns(shared_window(), 50, is_accepted=True)[5:])


def test_bad_drafts_are_tried_by_all_in_one_turn_and_ever_more_seldom() -> None:
    shapes = turns(shared_window(), 400, is_accepted=False)
    tried = [number for number, shape in enumerate(shapes) if shape != NO_WINDOW and number > 4]
    assert [later - before for before, later in itertools.pairwise(tried)] == [16, 32, 64, 128, 128]


def test_drafts_that_have_become_good_are_taken_again() -> None:
    shared = shared_window()
    turns(shared, 100, is_accepted=False)
    shapes = turns(shared, 600, is_accepted=True)
    assert shapes[0] == NO_WINDOW
    assert all(shape.num_steps for shape in shapes[-20:])


def test_one_request_of_eight_begins_with_drafts_where_trials_have_shown_that_none_pay() -> None:
    shared = shared_window()
    assert shared.begins_with_drafts()
    turns(shared, 8, is_accepted=False)
    assert shared.begins_with_drafts(), "nothing was tried again yet"
    turns(shared, 100, is_accepted=False)
    begun = [shared.begins_with_drafts() for _ in range(16)]
    assert begun == [True, *7 * [False], True, *7 * [False]]
    turns(shared, 600, is_accepted=True)
    assert all(shared.begins_with_drafts() for _ in range(16))


def test_a_row_that_costs_nothing_is_worth_any_token() -> None:
    shared = shared_window()
    assert shared.least_survival(WindowShape(1, 0)) == pytest.approx(0.0, abs=1e-4)

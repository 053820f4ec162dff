"""What goes into a pass: never too much, always something, windows whole, running sequences first."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given

from specdec.engine.schedule import Share, plan_pass

LARGEST_WINDOW = 8


@dataclass(eq=False)
class Round:
    num_uncached_tokens: int
    num_window_rows: int
    is_open: bool

    @property
    def num_rows(self) -> int:
        return self.num_uncached_tokens + self.num_window_rows


ROUNDS = st.lists(
    st.builds(
        Round,
        num_uncached_tokens=st.integers(1, 40),
        num_window_rows=st.integers(0, LARGEST_WINDOW),
        is_open=st.booleans(),
    )
    | st.builds(
        Round, num_uncached_tokens=st.just(1), num_window_rows=st.integers(0, LARGEST_WINDOW), is_open=st.just(False)
    ),
    max_size=12,
)
MAX_ROWS = st.integers(LARGEST_WINDOW + 1, 60)


def run(shares: list[Share[Round]], waiting: list[Round]) -> None:
    """What the engine does with a plan."""
    for pending, num_rows, finishes in shares:
        if finishes:
            waiting.remove(pending)
        else:
            pending.num_uncached_tokens -= num_rows


@given(ROUNDS, MAX_ROWS)
def test_a_pass_is_within_its_budget_and_does_something(waiting: list[Round], max_rows: int) -> None:
    shares = plan_pass(waiting, max_rows)
    assert sum(share.num_rows for share in shares) <= max_rows
    assert all(share.num_rows >= 1 for share in shares)
    assert bool(shares) == bool(waiting)
    assert len({id(share.pending) for share in shares}) == len(shares)


@given(ROUNDS, MAX_ROWS)
def test_a_window_is_run_whole_together_with_the_token_before_it(waiting: list[Round], max_rows: int) -> None:
    for pending, num_rows, finishes in plan_pass(waiting, max_rows):
        if finishes:
            assert num_rows == pending.num_rows
        else:
            assert num_rows < pending.num_uncached_tokens


@given(ROUNDS, MAX_ROWS)
def test_running_sequences_come_before_opens_and_each_kind_in_order_of_arrival(
    waiting: list[Round], max_rows: int
) -> None:
    order = [*(r for r in waiting if not r.is_open), *(r for r in waiting if r.is_open)]
    places = [order.index(share.pending) for share in plan_pass(waiting, max_rows)]
    assert places == sorted(places)
    room = max_rows
    chosen = {order[place]: share for place, share in zip(places, plan_pass(waiting, max_rows), strict=True)}
    for pending in order:
        share = chosen.get(pending)
        if share is None:
            # Nobody is passed over who could have been served with what those before left over.
            assert room < pending.num_rows
            assert room == 0 or pending.num_uncached_tokens == 1
        else:
            assert share.finishes == (pending.num_rows <= room)
            room -= share.num_rows


@given(ROUNDS, MAX_ROWS)
def test_every_round_is_finished_in_the_end(waiting: list[Round], max_rows: int) -> None:
    todo = sum(pending.num_rows for pending in waiting)
    first = next((r for r in waiting if not r.is_open), waiting[0] if waiting else None)
    passes = 0
    while waiting:
        shares = plan_pass(waiting, max_rows)
        assert shares[0].pending is first
        run(shares, waiting)
        if first not in waiting:
            first = next((r for r in waiting if not r.is_open), waiting[0] if waiting else None)
        passes += 1
        assert passes <= todo


@pytest.mark.parametrize(
    ("waiting", "max_rows", "expected"),
    [
        ([Round(1, 4, False), Round(1, 0, False)], 32, [(0, 5, True), (1, 1, True)]),
        ([Round(100, 0, True)], 32, [(0, 32, False)]),
        ([Round(33, 0, True)], 32, [(0, 32, False)]),
        ([Round(32, 0, True)], 32, [(0, 32, True)]),
        ([Round(100, 0, True), Round(1, 4, False)], 32, [(1, 5, True), (0, 27, False)]),
        # A window that no longer fits waits, and a smaller one behind it goes.
        ([Round(1, 7, False), Round(1, 7, False), Round(1, 1, False)], 10, [(0, 8, True), (2, 2, True)]),
        # Of a long prefix with a window, everything but the last token may go first.
        ([Round(5, 8, False)], 10, [(0, 4, False)]),
    ],
)
def test_examples(waiting: list[Round], max_rows: int, expected: list[tuple[int, int, bool]]) -> None:
    shares = plan_pass(waiting, max_rows)
    assert [(waiting.index(share.pending), share.num_rows, share.finishes) for share in shares] == expected

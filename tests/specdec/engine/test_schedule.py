"""What goes into a pass: never too much, always something, windows whole, running sequences first, nobody forgotten."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given

from specdec.engine.schedule import PassRows, Scheduler, Share, plan_pass

LARGEST_WINDOW = 8


@dataclass(eq=False)
class Round:
    num_uncached_tokens: int
    num_window_rows: int
    is_prefill: bool

    @property
    def num_rows(self) -> int:
        return self.num_uncached_tokens + self.num_window_rows


def running(num_window_rows: int) -> Round:
    return Round(1, num_window_rows, is_prefill=False)


def prefill(num_uncached_tokens: int, num_window_rows: int = 0) -> Round:
    return Round(num_uncached_tokens, num_window_rows, is_prefill=True)


ROUNDS = st.lists(
    st.builds(
        Round,
        num_uncached_tokens=st.integers(1, 40),
        num_window_rows=st.integers(0, LARGEST_WINDOW),
        is_prefill=st.booleans(),
    )
    | st.builds(running, st.integers(0, LARGEST_WINDOW)),
    max_size=12,
)
MAX_ROWS = st.integers(LARGEST_WINDOW + 1, 60)
PREFILL_ROWS = st.none() | st.integers(1, 60)


def run(shares: list[Share[Round]], waiting: list[Round]) -> None:
    """What the engine does with a plan."""
    for pending, num_rows, finishes in shares:
        if finishes:
            waiting.remove(pending)
        else:
            pending.num_uncached_tokens -= num_rows


@given(ROUNDS, MAX_ROWS, PREFILL_ROWS, st.booleans())
def test_a_pass_is_within_its_budget_and_does_something(
    waiting: list[Round], max_rows: int, prefill_rows: int | None, prefill_first: bool
) -> None:
    shares = plan_pass(waiting, max_rows, prefill_rows, prefill_first=prefill_first)
    assert sum(share.num_rows for share in shares) <= max_rows
    assert all(share.num_rows >= 1 for share in shares)
    assert bool(shares) == bool(waiting)
    assert len({id(share.pending) for share in shares}) == len(shares)
    if prefill_rows is not None:
        prefills = [share for share in shares if share.pending.is_prefill]
        over = sum(share.num_rows for share in prefills) - prefill_rows
        # Only the end of the last of them, with its window, may be more.
        assert over <= 0 or (prefills[-1].finishes and over <= prefills[-1].pending.num_window_rows)


@given(ROUNDS, MAX_ROWS, PREFILL_ROWS, st.booleans())
def test_a_window_is_run_whole_together_with_the_token_before_it(
    waiting: list[Round], max_rows: int, prefill_rows: int | None, prefill_first: bool
) -> None:
    for pending, num_rows, finishes in plan_pass(waiting, max_rows, prefill_rows, prefill_first=prefill_first):
        if finishes:
            assert num_rows == pending.num_rows
        else:
            assert num_rows < pending.num_uncached_tokens


@given(ROUNDS, MAX_ROWS)
def test_running_sequences_come_before_prefills_and_each_kind_in_order(waiting: list[Round], max_rows: int) -> None:
    order = [*(r for r in waiting if not r.is_prefill), *(r for r in waiting if r.is_prefill)]
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


@given(ROUNDS, MAX_ROWS, PREFILL_ROWS)
def test_every_round_is_finished_in_the_end(waiting: list[Round], max_rows: int, prefill_rows: int | None) -> None:
    todo = sum(pending.num_rows for pending in waiting)
    passes = 0
    is_overdue = False
    while waiting:
        first = next((r for r in waiting if r.is_prefill), None) if is_overdue else None
        first = first or next((r for r in waiting if not r.is_prefill), waiting[0])
        shares = plan_pass(waiting, max_rows, prefill_rows, prefill_first=is_overdue)
        assert shares[0].pending is first
        has_prefill = any(r.is_prefill for r in waiting)
        is_overdue = has_prefill and not any(share.pending.is_prefill for share in shares)
        run(shares, waiting)
        passes += 1
        assert passes <= todo


@pytest.mark.parametrize("max_rows", [LARGEST_WINDOW + 1, 20, 64])
@pytest.mark.parametrize("chunk_rows", [1, 4, 16])
def test_neither_a_prefill_nor_a_running_sequence_starves_in_a_saturated_loop(max_rows: int, chunk_rows: int) -> None:
    """Running sequences that fill every pass and come back at once, and prompts that keep arriving."""
    waiting = [running(LARGEST_WINDOW if place % 2 else 2) for place in range(12)]
    rows_a_round = sum(pending.num_rows for pending in waiting)
    served_at = dict.fromkeys(map(id, waiting), 0)
    arrived: dict[int, int] = {}
    scheduler = Scheduler(max_rows, chunk_rows)
    longest_wait = longest_gap = 0
    for now in range(600):
        if now % 60 == 0:
            waiting.append(prefill(20, now % 3))
            arrived[id(waiting[-1])] = now
        shares = scheduler.plan(waiting, is_anybody_running=False)
        assert sum(share.num_rows for share in shares) <= max_rows
        run(shares, waiting)
        for pending, _, finishes in shares:
            if finishes and pending.is_prefill:
                longest_wait = max(longest_wait, now - arrived.pop(id(pending)))
            elif finishes:
                longest_gap = max(longest_gap, now - served_at[id(pending)])
                served_at[id(pending)] = now
                waiting.append(pending)
    assert not arrived
    # A prompt gets half a chunk in any two passes, and running sequences all but a chunk of them.
    assert longest_wait <= 2 * -(-22 // max(chunk_rows // 2, 1))
    assert longest_gap <= 2 * -(-rows_a_round // (max_rows - LARGEST_WINDOW)) + 2


def test_prefill_is_paced_while_somebody_runs() -> None:
    scheduler = Scheduler(64, prefill_chunk_rows=8)
    alone = scheduler.plan([prefill(100)], is_anybody_running=False)
    beside_absent = scheduler.plan([prefill(100)], is_anybody_running=True)
    beside = scheduler.plan([prefill(100), running(3)], is_anybody_running=False)
    assert [share.num_rows for share in (*alone, *beside_absent, *beside)] == [64, 8, 4, 8]


def test_passes_that_are_observed_set_the_pace() -> None:
    scheduler = Scheduler(512)
    shares = [Share(running(3), 4, finishes=True), Share(prefill(100), 32, finishes=False)]
    assert PassRows.of(shares) == (4, 32)
    scheduler.observe(0.1, PassRows.of(shares[:1]))
    scheduler.observe(0.1 + 0.125, PassRows.of(shares))
    (share,) = scheduler.plan([prefill(100)], is_anybody_running=True)
    assert share.num_rows == 25


@pytest.mark.parametrize(
    ("waiting", "max_rows", "prefill_rows", "prefill_first", "expected"),
    [
        ([running(4), running(0)], 32, None, False, [(0, 5, True), (1, 1, True)]),
        ([prefill(100)], 32, None, False, [(0, 32, False)]),
        ([prefill(33)], 32, None, False, [(0, 32, False)]),
        ([prefill(32)], 32, None, False, [(0, 32, True)]),
        ([prefill(100), running(4)], 32, None, False, [(1, 5, True), (0, 27, False)]),
        # A window that no longer fits waits, and a smaller one behind it goes.
        ([running(7), running(7), running(1)], 10, None, False, [(0, 8, True), (2, 2, True)]),
        # Of a long prefix with a window, everything but the last token may go first.
        ([prefill(5, 8)], 10, None, False, [(0, 4, False)]),
        # Beside running sequences, prefills get a few rows, all together.
        ([prefill(100), prefill(100), running(4)], 32, 8, False, [(2, 5, True), (0, 8, False)]),
        ([prefill(6), prefill(100), running(4)], 32, 8, False, [(2, 5, True), (0, 6, True), (1, 2, False)]),
        # The end of a prefill and its window are one.
        ([prefill(1, 8)], 32, 4, False, [(0, 9, True)]),
        # Who was passed over comes first, if only for a chunk.
        ([running(7), prefill(100), prefill(9), running(7)], 12, 4, True, [(1, 4, False), (0, 8, True)]),
    ],
)
def test_examples(
    waiting: list[Round],
    max_rows: int,
    prefill_rows: int | None,
    prefill_first: bool,
    expected: list[tuple[int, int, bool]],
) -> None:
    shares = plan_pass(waiting, max_rows, prefill_rows, prefill_first=prefill_first)
    assert [(waiting.index(share.pending), share.num_rows, share.finishes) for share in shares] == expected

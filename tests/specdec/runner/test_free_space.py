"""Free blocks: none is lost or given twice, and those of one sequence lie side by side where that can be had."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from specdec.runner.free_space import FreeSpace, Room

NUM_BLOCKS = 24

STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "take", "give", "close"]), st.integers(0, 9), st.integers(0, 5)), max_size=60
)


@settings(deadline=None)
@given(STEPS)
def test_every_block_is_free_or_taken(steps: list[tuple[str, int, int]]) -> None:
    space = FreeSpace(NUM_BLOCKS)
    rooms: list[Room] = []
    taken: list[int] = []
    for step, amount, which in steps:
        room = rooms[which % len(rooms)] if rooms else None
        if step == "open":
            rooms.append(space.open(amount))
        elif step == "take" and room is not None:
            if amount > space.num_free:
                with pytest.raises(ValueError, match="are free"):
                    space.take(room, amount)
            else:
                taken += space.take(room, amount)
        elif step == "give" and taken:
            space.give(taken.pop(which % len(taken)))
        elif step == "close" and room is not None:
            rooms.remove(room)
            space.close(room)
            space.close(room)
        assert len(set(taken)) == len(taken)
        assert space.num_free + len(taken) == NUM_BLOCKS
    for room in rooms:
        space.close(room)
    for block in taken:
        space.give(block)
    assert space.has_range(NUM_BLOCKS)
    assert sorted(space.take(space.open(NUM_BLOCKS), NUM_BLOCKS)) == list(range(NUM_BLOCKS))


def test_sequences_side_by_side_each_grow_in_their_own_room() -> None:
    space = FreeSpace(NUM_BLOCKS)
    first, second = space.open(8), space.open(8)
    taken = [(space.take(first, 1), space.take(second, 2)) for _ in range(4)]
    assert [one for (one,), _ in taken] == [0, 1, 2, 3]
    assert [two for _, pair in taken for two in pair] == [8, 9, 10, 11, 12, 13, 14, 15]


def test_a_sequence_gets_the_smallest_range_that_is_large_enough() -> None:
    space = FreeSpace(NUM_BLOCKS)
    blocks = space.take(space.open(NUM_BLOCKS), NUM_BLOCKS)
    sizes = [space.give(block) for block in [*blocks[1:4], *blocks[6:12], *blocks[14:18]]]
    assert sizes == [1, 2, 3, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    assert not space.has_range(7)
    assert space.take(space.open(4), 4) == [14, 15, 16, 17]
    # None is: as much as there is in one place, and the rest elsewhere.
    assert space.take(space.open(9), 9) == [6, 7, 8, 9, 10, 11, 1, 2, 3]


def test_the_room_of_others_is_taken_last_and_from_behind() -> None:
    space = FreeSpace(12)
    owner = space.open(8)
    assert space.take(owner, 2) == [0, 1]
    other = space.open(4)
    assert space.take(other, 4) == [8, 9, 10, 11]
    assert space.take(other, 1) == [7]
    assert space.take(owner, 5) == [2, 3, 4, 5, 6]
    assert space.num_free == 0

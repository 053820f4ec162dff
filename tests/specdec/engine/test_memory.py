"""Admission by tokens, and who gives memory up: the youngest first, the oldest never."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from specdec.engine.memory import CacheMemory
from specdec.engine.schedule import Share
from specdec.errors import ResourceExhaustedError
from specdec.runner.cache import SequenceCache
from specdec.runner.pool import KVPool


@dataclass(eq=False)
class Round:
    """Of a sequence whose cache has room for rows that nobody writes."""

    cache: SequenceCache
    token_ids: list[int]
    num_window_rows: int = 0

    @property
    def num_uncached_tokens(self) -> int:
        return len(self.token_ids) - self.cache.length

    @property
    def is_prefill(self) -> bool:
        return self.num_uncached_tokens > 1

    def share(self, num_rows: int) -> Share[Round]:
        return Share(self, num_rows, finishes=num_rows == self.num_uncached_tokens + self.num_window_rows)

    def run(self, num_rows: int) -> None:
        """What a pass does."""
        assert self.cache.prepare(num_rows)
        self.cache.length += num_rows
        self.cache.publish(self.token_ids)


@dataclass
class Memory:
    """Blocks of 16 tokens."""

    num_blocks: int
    overcommit: float = 1.0
    max_num_queued: int = 0
    it: CacheMemory = field(init=False)

    def __post_init__(self) -> None:
        pool = KVPool(self.num_blocks)
        self.it = CacheMemory(pool, overcommit=self.overcommit, max_num_queued=self.max_num_queued)

    def join(self, num_tokens: int, max_tokens: int, first_token: int = 0) -> Round:
        pending = Round(SequenceCache(self.it.pool), list(range(first_token, first_token + num_tokens)))
        self.it.join(pending.cache, max_tokens)
        return pending

    def ready(self, *rounds: Round) -> list[int]:
        return [rounds.index(pending) for pending in self.it.ready(rounds)]

    def fit(self, *shares: Share[Round]) -> list[int]:
        return [shares.index(share) for share in self.it.fit(shares)]


def test_sequences_are_admitted_by_the_tokens_they_may_come_to_in_order() -> None:
    memory = Memory(10, max_num_queued=3)
    first, second = memory.join(8, 80), memory.join(8, 80)
    third, fourth = memory.join(8, 96), memory.join(8, 16, first_token=50)
    # The fourth would fit beside the first if it came before the third; it does not overtake.
    memory.it.leave(second.cache)
    assert memory.ready(first, third, fourth) == [0]
    assert memory.it.num_queued == 2
    memory.it.leave(first.cache)
    assert memory.ready(third, fourth) == [0, 1]
    assert memory.it.num_queued == 0


def test_it_knows_how_many_tokens_may_still_be_promised() -> None:
    memory = Memory(10, overcommit=1.5, max_num_queued=1)
    assert memory.it.num_free_tokens == 240
    first = memory.join(8, 81)
    assert memory.it.num_free_tokens == 240 - 96
    memory.join(8, 160)
    # What waits is promised nothing yet.
    assert memory.it.num_queued == 1
    assert memory.it.num_free_tokens == 240 - 96
    memory.it.leave(first.cache)
    assert memory.it.num_free_tokens == 240 - 160


def test_beyond_the_queue_they_are_refused_with_a_time_to_try_again() -> None:
    memory = Memory(10, max_num_queued=1)
    memory.join(8, 160)
    queued = memory.join(8, 160)
    with pytest.raises(ResourceExhaustedError, match="promised to 1 sequences, and 1 more wait") as refused:
        memory.join(8, 16)
    assert refused.value.retry_seconds == 2.0
    memory.it.leave(queued.cache)
    assert memory.join(8, 16) is not None
    with pytest.raises(ResourceExhaustedError):
        memory.join(8, 16)


def test_more_may_be_promised_than_there_is() -> None:
    memory = Memory(10, overcommit=1.5)
    for _ in range(3):
        memory.join(8, 80)
    with pytest.raises(ResourceExhaustedError):
        memory.join(8, 16)


def test_who_leaves_gives_back_what_it_was_promised_and_its_blocks_stay_to_be_found() -> None:
    memory = Memory(4)
    pending = memory.join(33, 64)
    assert memory.fit(pending.share(33)) == [0]
    pending.run(33)
    assert memory.it.pool.blocks.num_used == 3
    for _ in range(2):
        memory.it.leave(pending.cache)
    assert (memory.it.pool.blocks.num_used, memory.it.pool.blocks.num_cached) == (0, 2)
    again = memory.join(33, 64)
    assert memory.ready(again) == [0]
    assert again.cache.num_adopted == 32
    assert not again.is_prefill


def test_prefills_come_by_age_and_wait_for_a_block_that_an_older_one_computes() -> None:
    memory = Memory(40)
    old, twin, other, young = (memory.join(40, 64, first) for first in (0, 0, 500, 0))
    young.token_ids = [*range(20), *range(600, 620)]
    # A round that has just come is of an old sequence all the same.
    assert memory.ready(young, twin, other, old) == [3, 2]
    memory.fit(old.share(20))
    old.run(20)
    # One block is there now; they part in the next one.
    assert memory.ready(young, twin, other, old) == [3, 2, 0]
    assert (young.cache.length, twin.cache.length) == (16, 16)
    memory.it.leave(old.cache)
    assert memory.ready(young, twin, other) == [1, 2, 0]


def test_when_blocks_run_out_the_youngest_lose_theirs() -> None:
    memory = Memory(6, overcommit=3)
    rounds = [memory.join(31, 96, 100 * place) for place in range(3)]
    assert memory.fit(*(pending.share(31) for pending in rounds)) == [0, 1, 2]
    for pending in rounds:
        pending.run(31)
        pending.token_ids += [1, 2]
    # Each needs a third block, and all are used.
    assert memory.fit(*(pending.share(2) for pending in reversed(rounds))) == [1, 2]
    assert memory.it.num_preemptions == 1
    assert [pending.cache.length for pending in rounds] == [31, 31, 0]
    # It is prefilled again when there is room for all of it, and keeps its place before those that come later.
    assert memory.fit(rounds[2].share(33)) == []
    memory.it.leave(rounds[0].cache)
    later = memory.join(33, 96, 900)
    assert memory.ready(later, rounds[2], rounds[1])[1:] == [1, 0]
    assert memory.fit(rounds[2].share(33)) == [0]


def test_the_young_take_nothing_from_the_old() -> None:
    memory = Memory(6, overcommit=3)
    old, young = memory.join(80, 96, 0), memory.join(33, 96, 500)
    assert memory.fit(old.share(80)) == [0]
    old.run(80)
    assert memory.fit(young.share(33)) == []
    assert (memory.it.num_preemptions, old.cache.length) == (0, 80)


def test_nobody_loses_a_cache_in_vain() -> None:
    memory = Memory(6, overcommit=4)
    oldest, old, young = memory.join(48, 96, 0), memory.join(48, 96, 500), memory.join(31, 96, 900)
    for pending in (oldest, young):
        assert memory.fit(pending.share(pending.num_uncached_tokens)) == [0]
        pending.run(pending.num_uncached_tokens)
    old.token_ids += range(100)
    # Not even the young one's two blocks would be enough.
    assert memory.fit(old.share(148)) == []
    assert young.cache.length == 31


def test_a_share_of_a_pass_whose_cache_went_to_an_older_one_is_left_out() -> None:
    memory = Memory(4, overcommit=2)
    old, young = memory.join(64, 64, 0), memory.join(31, 64, 500)
    assert memory.fit(young.share(31)) == [0]
    young.run(31)
    young.token_ids.append(7)
    # The prefill comes last in the pass and is older.
    assert memory.fit(young.share(1), old.share(16)) == [1]
    assert young.cache.num_blocks == 0


def test_three_rows_may_need_two_blocks() -> None:
    memory = Memory(4, overcommit=3)
    first, other = memory.join(31, 48, 0), memory.join(16, 16, 500)
    for pending in (first, other):
        pending.run(pending.num_uncached_tokens)
    first.cache.publish(first.token_ids, with_tail=True)
    twin = memory.join(31, 48, 0)
    assert memory.ready(twin) == [0]
    twin.token_ids += [7, 8]
    # One is free. It needs that one and a copy of the last one that it shares.
    assert (twin.num_uncached_tokens, memory.it.pool.blocks.num_available) == (3, 1)
    assert memory.fit(twin.share(3)) == []
    memory.it.leave(other.cache)
    assert memory.fit(twin.share(3)) == [0]
    twin.run(3)


def test_a_sequence_gets_room_for_what_it_may_come_to() -> None:
    memory = Memory(20)
    rounds = [memory.join(15, 64, 500 * place) for place in range(4)]
    for _ in range(40):
        for pending in rounds:
            assert memory.fit(pending.share(pending.num_uncached_tokens)) == [0]
            pending.run(pending.num_uncached_tokens)
            pending.token_ids.append(7)
    assert [len(pending.cache.spans(54)) for pending in rounds] == [1] * 4

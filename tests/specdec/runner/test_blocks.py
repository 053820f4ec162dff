"""The books of the pool; caches and rows in it are in test_cache.py."""

from __future__ import annotations

import pytest

from specdec.runner.blocks import BlockPool

KEYS = [bytes([number]) for number in range(10)]


def test_what_was_used_least_recently_is_evicted_first_and_only_when_needed() -> None:
    pool = BlockPool(6)
    room = pool.begin(6)
    blocks = pool.take(room, 6)
    for block, key in zip(blocks, KEYS, strict=False):
        pool.publish(block, key, 16)
    for block in (3, 1, 2, 0):
        pool.release(block)
    pool.hold(1)
    pool.release(1)
    assert (pool.num_used, pool.num_cached, pool.num_available, pool.num_evictions) == (2, 4, 4, 0)
    assert pool.take(room, 1) == [3]
    assert pool.num_evictions == 1
    assert [key for key in KEYS if pool.find(key) is None] == [KEYS[3], *KEYS[6:]]
    assert sorted(pool.take(room, 2)) == [0, 2]
    assert pool.find(KEYS[1]) == 1
    with pytest.raises(ValueError, match="2 blocks are wanted and 1 are available"):
        pool.take(room, 2)


def test_what_is_in_use_is_never_evicted() -> None:
    pool = BlockPool(2)
    room = pool.begin(2)
    for block, key in zip(pool.take(room, 2), KEYS, strict=False):
        pool.publish(block, key, 16)
    pool.hold(0)
    pool.release(0)
    pool.release(1)
    assert pool.take(room, 1) == [1]
    assert pool.find(KEYS[0]) == 0
    with pytest.raises(ValueError, match="are available"):
        pool.take(room, 1)


def test_what_nobody_holds_cannot_be_released() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(pool.begin(1), 1)
    pool.release(block)
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.release(block)


def test_what_was_not_published_is_free_at_once() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(pool.begin(1), 1)
    pool.release(block)
    assert (pool.num_cached, pool.num_available) == (0, 2)


def test_a_block_is_written_by_its_only_holder_behind_what_is_published() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(pool.begin(1), 1)
    assert pool.is_writable(block, 0)
    pool.publish(block, KEYS[0], 5)
    assert [pool.is_writable(block, row) for row in (0, 4, 5)] == [False, False, True]
    pool.publish(block, KEYS[1], 16)
    assert not pool.is_writable(block, 15)
    assert pool.find(KEYS[0]) == pool.find(KEYS[1]) == block
    (other,) = pool.take(pool.begin(1), 1)
    pool.publish(other, KEYS[2], 3)
    pool.hold(other)
    assert not pool.is_writable(other, 3)


def test_several_blocks_are_writable_if_each_of_them_is() -> None:
    pool = BlockPool(3)
    first, second, third = pool.take(pool.begin(3), 3)
    pool.publish(first, KEYS[0], 5)
    assert pool.are_writable([], 0)
    assert [pool.are_writable([first, second, third], row) for row in (4, 5)] == [False, True]
    pool.publish(third, KEYS[1], 1)
    assert pool.are_writable([first, second], 5)
    assert not pool.are_writable([first, second, third], 5)
    pool.hold(second)
    assert not pool.are_writable([first, second], 5)


def test_what_is_withdrawn_is_not_found_and_free_when_it_is_released() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(pool.begin(1), 1)
    pool.publish(block, KEYS[0], 5)
    pool.publish(block, KEYS[1], 16)
    for _ in range(2):
        pool.withdraw(block)
    assert pool.find(KEYS[0]) is pool.find(KEYS[1]) is None
    assert pool.is_writable(block, 0)
    pool.release(block)
    assert (pool.num_cached, pool.num_available) == (0, 2)


def test_the_first_block_with_a_key_keeps_it() -> None:
    pool = BlockPool(2)
    first, second = pool.take(pool.begin(2), 2)
    pool.publish(first, KEYS[0], 16)
    pool.publish(second, KEYS[0], 16)
    assert pool.find(KEYS[0]) == first
    pool.release(second)
    assert pool.num_cached == 0


def test_cached_blocks_make_way_for_a_sequence_that_would_not_lie_in_one_piece() -> None:
    pool = BlockPool(12)
    blocks = pool.take(pool.begin(12), 12)
    for block, key in zip(blocks, KEYS, strict=False):
        pool.publish(block, key, 16)
    pool.release(11)
    for block in (9, 8, 7, 6, 3, 2, 1, 0):
        pool.release(block)
    assert pool.take(pool.begin(4), 4) == [6, 7, 8, 9]
    # Least recently used first, and no more of them than it needs.
    assert (pool.num_evictions, pool.num_cached) == (4, 4)


def test_a_block_that_is_forgotten_is_found_no_more_and_is_free_once_nobody_holds_it() -> None:
    pool = BlockPool(2)
    room = pool.begin(1)
    (block,) = pool.take(room, 1)
    pool.publish(block, b"a", 4)
    pool.forget(block)
    assert pool.find(b"a") is None
    assert (pool.num_used, pool.num_cached, pool.num_available) == (1, 0, 1)
    pool.publish(block, b"b", 4)
    pool.release(block)
    assert pool.num_cached == 1
    pool.forget(block)
    assert pool.find(b"b") is None
    assert (pool.num_used, pool.num_cached, pool.num_available) == (0, 0, 2)

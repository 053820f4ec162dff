"""Caches of sequences in one pool: what is written is read back, whatever is shared, cut, evicted and written again."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specdec.runner.attention import RaggedBatch
from specdec.runner.cache import SequenceCache
from specdec.runner.pool import KVPool
from specdec.runner.segment import Segment

LAYERS, HEADS, KEY_DIM, VALUE_DIM = 2, 2, 3, 5
BLOCK_TOKENS, NUM_BLOCKS = 4, 9
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
"""So few different ones that prefixes are often equal."""


class Sequence:
    """Tokens known, the cache of some of them, and the model that computes it: a row depends on all before it."""

    _numbers: ClassVar[dict[tuple[int, ...], int]] = {}

    def __init__(self, pool: KVPool | None, token_ids: list[int], salt: bytes = b"") -> None:
        self.token_ids = token_ids
        self.salt = salt
        self.cache = SequenceCache(pool, salt)

    def rows(self, layer: int, token_ids: list[int], start: int) -> tuple[torch.Tensor, torch.Tensor]:
        prefixes = [tuple(token_ids[: end + 1]) for end in range(start, len(token_ids))]
        numbers = [self._numbers.setdefault((*self.salt, -1, *prefix), len(self._numbers)) for prefix in prefixes]
        column = torch.tensor(numbers, dtype=torch.float64)[None, :, None] + 1e6 * layer
        return column.expand(HEADS, -1, KEY_DIM), -column.expand(HEADS, -1, VALUE_DIM)

    @torch.inference_mode()
    def write(self, token_ids: list[int]) -> None:
        """The rows of a pass that continues the cache with these tokens."""
        start = self.cache.length
        everything = [*self.token_ids[:start], *token_ids]
        segment = Segment(self.cache, len(token_ids))
        batch = RaggedBatch([segment])
        for layer in range(LAYERS):
            batch.write(layer, *self.rows(layer, everything, start))
            self.check(layer, segment, everything)

    def check(self, layer: int, segment: Segment, token_ids: list[int]) -> None:
        for found, expected in zip(segment.read(layer), self.rows(layer, token_ids, 0), strict=True):
            assert torch.equal(found, expected)

    def check_all(self) -> None:
        if self.cache.length:
            segment = Segment(self.cache, 0)
            for layer in range(LAYERS):
                self.check(layer, segment, self.token_ids[: self.cache.length])


class PoolMachine(RuleBasedStateMachine):
    """Sequences that begin, run, roll back and end, in a pool that is too small for them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = KVPool(NUM_BLOCKS, BLOCK_TOKENS)
        self.sequences: list[Sequence] = []

    def prepared(self, sequence: Sequence, num_rows: int) -> bool:
        """Make room, by taking it from the others if need be."""
        cache = sequence.cache
        others = [other for other in self.sequences if other is not sequence and other.cache.num_blocks]
        while True:
            missing, available = cache.num_missing(num_rows), self.pool.blocks.num_available
            if cache.prepare(num_rows):
                assert available - self.pool.blocks.num_available <= missing <= available
                return True
            assert cache.num_missing(num_rows) == missing > available == self.pool.blocks.num_available
            if not others:
                return False
            others.pop().cache.release()

    @rule(token_ids=TOKENS, salt=st.sampled_from([b"", b"", b"other"]))
    def a_prompt_arrives(self, token_ids: list[int], salt: bytes) -> None:
        self.sequences.append(Sequence(self.pool, token_ids, salt))
        self.sequences[-1].cache.expected_length = 20

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def a_chunk_is_prefilled(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        if sequence.cache.length >= len(sequence.token_ids):
            return
        held, adopted = sequence.cache.length, sequence.cache.num_adopted
        sequence.cache.adopt(sequence.token_ids)
        assert sequence.cache.num_adopted - adopted == sequence.cache.length - held
        sequence.check_all()
        uncached = sequence.token_ids[sequence.cache.length :]
        chunk = uncached[: data.draw(st.integers(1, len(uncached)))]
        if self.prepared(sequence, len(chunk)):
            sequence.write(chunk)
            sequence.cache.length += len(chunk)
            sequence.cache.publish(sequence.token_ids, with_tail=data.draw(st.booleans()))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), drafts=st.lists(st.integers(2, 3), max_size=6), fails=st.booleans())
    def a_window_is_verified(self, data: st.DataObject, drafts: list[int], fails: bool) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        uncached = sequence.token_ids[sequence.cache.length :]
        if not uncached or not self.prepared(sequence, len(uncached) + len(drafts)):
            return
        # Rows of a tree see their path only; here the accepted nodes are written with the rows that they must have.
        nodes = sorted(data.draw(st.sets(st.sampled_from(range(len(drafts)))))) if drafts else []
        base = len(sequence.token_ids)
        accepted = [*sequence.token_ids, *(drafts[node] for node in nodes)]
        sequence.write([*uncached, *drafts])
        if fails:
            return
        window = [*sequence.token_ids, *drafts]
        with torch.inference_mode():
            batch = RaggedBatch([Segment(sequence.cache, len(uncached) + len(drafts))])
            for layer in range(LAYERS):
                keys, values = (tensor.clone() for tensor in sequence.rows(layer, window, base - len(uncached)))
                right = sequence.rows(layer, accepted, base)
                for place, node in enumerate(nodes):
                    keys[:, len(uncached) + node] = right[0][:, place]
                    values[:, len(uncached) + node] = right[1][:, place]
                batch.write(layer, keys, values)
        sequence.cache.length = base + len(drafts)
        sequence.cache.keep_rows(base, nodes)
        sequence.token_ids = [*accepted, data.draw(st.integers(0, 1))]
        sequence.cache.publish(sequence.token_ids)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def a_cache_is_cut(self, data: st.DataObject) -> None:
        cache = data.draw(st.sampled_from(self.sequences)).cache
        cache.truncate(data.draw(st.integers(0, cache.length)))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), ends=st.booleans())
    def a_cache_is_released(self, data: st.DataObject, ends: bool) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        sequence.cache.release()
        if ends:
            self.sequences.remove(sequence)

    @invariant()
    def every_cache_has_its_own_rows(self) -> None:
        for sequence in self.sequences:
            sequence.check_all()

    @invariant()
    def the_books_are_right(self) -> None:
        blocks = self.pool.blocks
        held = Counter(block for sequence in self.sequences for block in sequence.cache._blocks)
        assert blocks._references == held
        assert not held.keys() & blocks._cached.keys()
        assert blocks.num_used + blocks.num_available == NUM_BLOCKS
        free = {block for found in [*blocks._space._ranges] for block in range(*found)}
        free |= {block for room in blocks._space._rooms.values() for block in range(room.start, room.end)}
        assert len(free) == blocks._space.num_free
        assert free | held.keys() | blocks._cached.keys() == set(range(NUM_BLOCKS))
        assert {key for keys in blocks._keys.values() for key in keys} == blocks._by_key.keys()
        assert blocks._keys.keys() == blocks._num_published.keys() <= held.keys() | blocks._cached.keys()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def run(sequence: Sequence) -> None:
    """Prefill what is not there, as the engines do."""
    sequence.cache.adopt(sequence.token_ids)
    uncached = sequence.token_ids[sequence.cache.length :]
    assert sequence.cache.prepare(len(uncached))
    sequence.write(uncached)
    sequence.cache.length += len(uncached)
    sequence.cache.publish(sequence.token_ids, with_tail=True)


@pytest.mark.parametrize(
    ("prompt", "other", "num_adopted"),
    [
        # The last token is always left to run.
        (range(10), range(10), 9),
        (range(8), range(8), 7),
        (range(5), range(5), 4),
        (range(4), range(4), 3),
        (range(2), range(2), 1),
        (range(1), range(1), 0),
        # Full blocks are found by any prefix, the last part by the same prompt only.
        (range(10), range(11), 8),
        (range(10), range(9), 8),
        (range(10), range(8), 7),
        (range(10), [0, 1, 2, 3, 4, 5, 6, 9, 8, 9], 4),
        (range(10), [9, 1, 2, 3, 4, 5, 6, 7], 0),
    ],
)
def test_what_a_sequence_finds_of_another_prompt(prompt: range, other: list[int], num_adopted: int) -> None:
    pool = KVPool(16, BLOCK_TOKENS)
    run(Sequence(pool, list(prompt)))
    second = Sequence(pool, list(other))
    second.cache.adopt(second.token_ids)
    assert second.cache.num_adopted == num_adopted == second.cache.length
    second.check_all()
    run(second)


def test_a_block_is_copied_by_the_first_who_writes_into_it() -> None:
    pool = KVPool(16, BLOCK_TOKENS)
    first = Sequence(pool, [1, 2, 3, 4, 5, 6])
    run(first)
    second = Sequence(pool, list(first.token_ids))
    second.cache.adopt(second.token_ids)
    assert pool.blocks.num_used == 2
    run(second)
    assert pool.blocks.num_used == 3
    # The one whose block it was goes on in it, behind the rows that others may find.
    for sequence, token in ((first, 7), (second, 8)):
        sequence.token_ids.append(token)
        run(sequence)
    assert pool.blocks.num_used == 3
    first.check_all()
    second.check_all()


def test_prefixes_are_not_shared_under_another_salt() -> None:
    pool = KVPool(16, BLOCK_TOKENS)
    run(Sequence(pool, list(range(10)), b"mine"))
    for salt, num_adopted in ((b"yours", 0), (b"", 0), (b"mine", 9)):
        other = Sequence(pool, list(range(10)), salt)
        other.cache.adopt(other.token_ids)
        assert other.cache.num_adopted == num_adopted


def test_truncating_takes_absolute_lengths_only() -> None:
    # B27: 0 means nothing is left, and nothing can be truncated to more than there is.
    sequence = Sequence(None, [1, 2, 3])
    run(sequence)
    for length in (-1, -3, 4, 5):
        with pytest.raises(ValueError, match=f"cannot truncate a cache of 3 tokens to {length}"):
            sequence.cache.truncate(length)
    sequence.cache.truncate(3)
    assert sequence.cache.length == 3
    sequence.cache.truncate(0)
    assert sequence.cache.length == 0


def test_a_prefix_is_copied_into_an_empty_cache_only() -> None:
    source, full = Sequence(None, [1, 2, 3]), Sequence(None, [1, 2, 3])
    run(source)
    run(full)
    with pytest.raises(ValueError, match="cannot copy 2 of 3 tokens into a cache of 3"):
        full.cache.copy_prefix(source.cache, 2)
    with pytest.raises(ValueError, match="cannot copy 4 of 3 tokens into a cache of 0"):
        SequenceCache().copy_prefix(source.cache, 4)
    copy = Sequence(None, [1, 2, 7])
    copy.cache.copy_prefix(source.cache, 2)
    source.cache.truncate(0)
    source.token_ids = [8, 8, 8]
    run(source)
    copy.check_all()
    run(copy)


def test_memory_is_layers_by_heads_by_dim_for_each_token_rounded_up_to_blocks() -> None:
    pool = KVPool(64)
    sequence = Sequence(pool, [1] * 100)
    run(sequence)
    a_token = LAYERS * HEADS * (KEY_DIM + VALUE_DIM) * 8
    assert pool.storage.bytes_per_slot == a_token
    assert sequence.cache.num_blocks * pool.block_tokens * a_token <= 1.05 * 112 * a_token


def test_a_sequence_that_grows_beside_others_is_read_as_a_view() -> None:
    pool = KVPool(64, BLOCK_TOKENS)
    sequences = [Sequence(pool, [number] * 9) for number in range(4)]
    for sequence in sequences:
        sequence.cache.expected_length = 32
    for _ in range(20):
        for sequence in sequences:
            uncached = sequence.token_ids[sequence.cache.length :]
            assert sequence.cache.prepare(len(uncached))
            sequence.write(uncached)
            sequence.cache.length += len(uncached)
            sequence.token_ids.append(7)
    assert [len(sequence.cache.spans(28)) for sequence in sequences] == [1] * 4


def test_trimming_gives_up_the_blocks_that_hold_nothing_valid() -> None:
    pool = KVPool(6, block_tokens=4)
    cache, other = SequenceCache(pool), SequenceCache(pool)
    assert cache.prepare(18)
    cache.length = 18
    cache.truncate(5)
    assert not other.prepare(9)
    cache.trim()
    assert (cache.num_blocks, cache.length) == (2, 5)
    assert cache.spans(5) == [(0, 5)]
    assert other.prepare(9)
    cache.trim()
    assert cache.num_blocks == 2
    assert cache.prepare(3)
    cache.release()
    other.release()
    assert pool.blocks.num_used == 0

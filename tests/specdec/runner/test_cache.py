"""The cache of one sequence: what is written is read back, whatever length it is set to in between."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specdec.runner.cache import SequenceCache

LAYERS, HEADS, KEY_DIM, VALUE_DIM = 2, 2, 3, 5


class CacheMachine(RuleBasedStateMachine):
    """The cache against plain lists of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = SequenceCache()
        self.rows: list[int] = []
        self.counter = 0

    def tensors(self, layer: int, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.tensor(rows, dtype=torch.float32)[None, :, None] + 1000 * layer
        return numbers.expand(HEADS, -1, KEY_DIM), -numbers.expand(HEADS, -1, VALUE_DIM)

    @torch.inference_mode()
    def write(self, count: int) -> list[int]:
        new = list(range(self.counter, self.counter + count))
        self.counter += count
        for layer in range(LAYERS):
            keys, values = self.cache.write(layer, *self.tensors(layer, new))
            expected_keys, expected_values = self.tensors(layer, [*self.rows, *new])
            assert torch.equal(keys, expected_keys)
            assert torch.equal(values, expected_values)
        return new

    @rule(count=st.integers(1, 40))
    def a_pass(self, count: int) -> None:
        self.rows += self.write(count)
        self.cache.length += count

    @rule(count=st.integers(1, 40))
    def a_pass_that_fails_after_writing(self, count: int) -> None:
        self.write(count)

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.rows)))
        self.cache.truncate(length)
        del self.rows[length:]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def keep_some_rows(self, data: st.DataObject) -> None:
        base = data.draw(st.integers(0, len(self.rows)))
        beyond = range(len(self.rows) - base)
        kept = sorted(data.draw(st.sets(st.sampled_from(beyond), max_size=8))) if beyond else []
        self.cache.keep_rows(base, kept)
        self.rows = [*self.rows[:base], *(self.rows[base + row] for row in kept)]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def go_on_in_a_copy(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.rows)))
        original, self.cache = self.cache, SequenceCache()
        self.cache.copy_prefix(original, length)
        del self.rows[length:]
        # What happens to the original is nothing to the copy.
        original.truncate(0)
        with torch.inference_mode():
            for layer in range(LAYERS):
                original.write(layer, *self.tensors(layer, [-1] * 50))

    @invariant()
    def length_is_right(self) -> None:
        assert self.cache.length == len(self.rows)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, deadline=None)


def test_truncating_takes_absolute_lengths_only() -> None:
    # B27: 0 means nothing is left, and nothing can be truncated to more than there is.
    cache = SequenceCache()
    cache.write(0, torch.zeros(1, 3, 2), torch.zeros(1, 3, 2))
    cache.length = 3
    for length in (-1, -3, 4, 5):
        with pytest.raises(ValueError, match=f"cannot truncate a cache of 3 tokens to {length}"):
            cache.truncate(length)
    cache.truncate(3)
    assert cache.length == 3
    cache.truncate(0)
    assert cache.length == 0


def test_a_prefix_is_copied_into_an_empty_cache_only() -> None:
    source, full = SequenceCache(), SequenceCache()
    for cache in (source, full):
        cache.write(0, torch.zeros(1, 3, 2), torch.zeros(1, 3, 2))
        cache.length = 3
    with pytest.raises(ValueError, match="cannot copy 2 of 3 tokens into a cache of 3"):
        full.copy_prefix(source, 2)
    with pytest.raises(ValueError, match="cannot copy 4 of 3 tokens into a cache of 0"):
        SequenceCache().copy_prefix(source, 4)


def test_memory_grows_by_doubling() -> None:
    cache = SequenceCache()
    assert cache.num_bytes == 0
    sizes = []
    for _ in range(130):
        cache.write(0, torch.zeros(2, 1, 4), torch.zeros(2, 1, 4))
        cache.length += 1
        sizes.append(cache.num_bytes)
    a_token = 2 * 2 * 4 * 4
    assert sizes[0] == sizes[63] == 64 * a_token
    assert sizes[64] == sizes[127] == 128 * a_token
    assert sizes[128] == 256 * a_token

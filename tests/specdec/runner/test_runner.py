"""A ragged batch gives each sequence the logits that it would get alone, whatever happened to its cache before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, VOCAB_SIZE, plain_logits, tiny_model
from tests.tiny_models import tiny_llama

TOLERANCE = 1e-5
"""Largest difference, relative to the spread of the logits."""


def some_tokens(generator: random.Random, count: int) -> list[int]:
    return [generator.randrange(VOCAB_SIZE) for _ in range(count)]


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    assert float((found - expected).abs().max() / expected.std()) < TOLERANCE


class Sequence:
    """Tokens, the cache of some of them, and the piece of work that was asked for last."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self.cache = SequenceCache()
        self.token_ids: list[int] = []
        self.num_logits = 0

    def next_work(self) -> Work:
        """A prefill chunk, a decode step or a window, often after a rollback."""
        if self.token_ids and self._generator.random() < 0.5:
            kept = self._generator.randrange(max(0, len(self.token_ids) - 6), len(self.token_ids) + 1)
            self.cache.truncate(kept)
            del self.token_ids[kept:]
        new = some_tokens(self._generator, self._generator.choice([1, 1, 2, 5, 8, 13]))
        self.token_ids += new
        self.num_logits = self._generator.choice([0, 1, len(new)])
        return Work(self.cache, new, self.num_logits)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ragged_batches_equal_separate_forwards(name: str) -> None:
    model = tiny_model(name)
    runner = ModelRunner(model, VOCAB_SIZE)
    generator = random.Random(name)
    sequences = [Sequence(generator) for _ in range(4)]
    for _ in range(12):
        batch = generator.sample(sequences, generator.randint(1, len(sequences)))
        logits = runner.forward([sequence.next_work() for sequence in batch])
        assert len(logits) == len(batch)
        for sequence, rows in zip(batch, logits, strict=True):
            assert sequence.cache.length == len(sequence.token_ids)
            assert rows.shape == (sequence.num_logits, VOCAB_SIZE)
            if sequence.num_logits:
                assert_same(rows, plain_logits(model, sequence.token_ids)[-sequence.num_logits :])
    assert max(len(sequence.token_ids) for sequence in sequences) > 20


TREES = {
    "two_roots": [-1, -1],
    "binary": [-1, -1, 0, 0, 1, 1],
    "comb": [-1, 0, 0, 1, 1, 3, 3],
    "forest": [-1, 0, -1, 2, 2, 0, 5],
    "chain": [-1, 0, 1, 2],
    "deeper_than_the_window": [-1, -1, 1, 2, 3, 4, 5, 6, 7],
}


@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_path_of_a_tree_equals_a_plain_forward(name: str, parents: list[int]) -> None:
    model = tiny_model(name)
    runner = ModelRunner(model, VOCAB_SIZE)
    generator = random.Random(name)
    prefix = some_tokens(generator, 11)
    nodes = some_tokens(generator, len(parents))
    neighbour = some_tokens(generator, 9)
    cache, other = SequenceCache(), SequenceCache()
    runner.forward([Work(cache, prefix[:8], 0), Work(other, neighbour[:5], 0)])
    # Three committed tokens are not in the cache yet, so the tree starts behind them; another sequence shares the pass.
    logits, beside = runner.forward(
        [Work(cache, [*prefix[8:], *nodes], 1 + len(nodes), parents), Work(other, neighbour[5:], 1)]
    )
    assert_same(beside, plain_logits(model, neighbour)[-1:])
    paths = {-1: list[int]()}
    for node, parent in enumerate(parents):
        paths[node] = [*paths[parent], node]
    for row, (_, path) in enumerate(sorted(paths.items())):
        expected = plain_logits(model, [*prefix, *(nodes[node] for node in path)])[-1]
        assert_same(logits[row], expected)

    # Keep one path, as after acceptance, and go on behind it.
    deepest = max(paths.values(), key=len)
    cache.keep_rows(len(prefix), deepest)
    accepted = [*prefix, *(nodes[node] for node in deepest)]
    assert cache.length == len(accepted)
    following = some_tokens(generator, 2)
    (logits,) = runner.forward([Work(cache, following, 2)])
    assert_same(logits, plain_logits(model, [*accepted, *following])[-2:])


@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_tree_may_grow_pass_by_pass(name: str, parents: list[int]) -> None:
    model = tiny_model(name)
    runner = ModelRunner(model, VOCAB_SIZE)
    generator = random.Random(name)
    prefix, nodes = some_tokens(generator, 11), some_tokens(generator, len(parents))
    cache = SequenceCache()
    runner.forward([Work(cache, prefix, 0)])
    logits: list[torch.Tensor] = []
    for start in range(0, len(nodes), 2):
        end = min(start + 2, len(nodes))
        (rows,) = runner.forward([Work(cache, nodes[start:end], end - start, parents[:end])])
        logits.extend(rows)
    paths = {-1: list[int]()}
    for node, parent in enumerate(parents):
        paths[node] = [*paths[parent], node]
        expected = plain_logits(model, [*prefix, *(nodes[each] for each in paths[node])])[-1]
        assert_same(logits[node], expected)


def test_a_tree_may_stand_on_a_cache_alone() -> None:
    model = tiny_model("mistral")
    runner = ModelRunner(model, VOCAB_SIZE)
    cache = SequenceCache()
    prefix = some_tokens(random.Random(3), 10)
    runner.forward([Work(cache, prefix, 0)])
    (logits,) = runner.forward([Work(cache, [5, 6, 7], 3, [-1, -1, 0])])
    for row, path in enumerate(([5], [6], [5, 7])):
        assert_same(logits[row], plain_logits(model, [*prefix, *path])[-1])


@contextmanager
def broken_in_the_middle(model: torch.nn.Module) -> Iterator[None]:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    handle = model.model.layers[1].self_attn.register_forward_pre_hook(fail)  # type: ignore[union-attr, index]
    try:
        yield
    finally:
        handle.remove()


def test_a_forward_that_raises_leaves_the_caches_as_they_were() -> None:
    model = tiny_model("llama")
    runner = ModelRunner(model, VOCAB_SIZE)
    generator = random.Random(0)
    one, other = some_tokens(generator, 70), some_tokens(generator, 5)
    caches = SequenceCache(), SequenceCache()
    runner.forward([Work(caches[0], one[:60], 0), Work(caches[1], other, 0)])
    rest = [Work(caches[0], one[60:], 1), Work(caches[1], [7], 1)]
    # The failing pass makes the first layer's tensors grow, and writes rows that are not valid.
    with broken_in_the_middle(model), pytest.raises(torch.OutOfMemoryError):
        runner.forward([Work(caches[0], some_tokens(generator, 10), 1), Work(caches[1], [9], 1)])
    assert [cache.length for cache in caches] == [60, 5]
    logits = runner.forward(rest)
    assert_same(logits[0], plain_logits(model, one)[-1:])
    assert_same(logits[1], plain_logits(model, [*other, 7])[-1:])


def test_padding_rows_of_the_vocabulary_are_cut() -> None:
    # B35: the checkpoint has 320 rows, the tokenizer 300 ids.
    model = tiny_llama(vocab_size=320)
    tokens = [1, 2, 3]
    (padded,) = ModelRunner(model, 320).forward([Work(SequenceCache(), tokens, 3)])
    (cut,) = ModelRunner(model, 300).forward([Work(SequenceCache(), tokens, 3)])
    assert padded.shape == (3, 320)
    assert torch.equal(cut, padded[:, :300])


def test_a_batch_in_which_nobody_wants_logits() -> None:
    cache = SequenceCache()
    (logits,) = ModelRunner(tiny_model("llama"), VOCAB_SIZE).forward([Work(cache, [1, 2], 0)])
    assert logits.shape == (0, VOCAB_SIZE)
    assert cache.length == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_half_precision_is_about_right(name: str, dtype: torch.dtype) -> None:
    model = tiny_model(name)
    generator = random.Random(1)
    tokens = some_tokens(generator, 20)
    expected = plain_logits(model, tokens)
    torch.nn.Module.to(model, dtype)
    runner = ModelRunner(model, VOCAB_SIZE)
    cache = SequenceCache()
    prefilled, beside = runner.forward([Work(cache, tokens[:12], 12), Work(SequenceCache(), tokens[:3], 3)])
    (window,) = runner.forward([Work(cache, tokens[12:], 8)])
    for found, wanted in ((prefilled, expected[:12]), (beside, expected[:3]), (window, expected[12:])):
        assert found.dtype == torch.float32
        # Most rows: a token that another expert gets may differ a lot.
        distance = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        assert float(distance.median()) < (0.02 if dtype == torch.float16 else 0.15)

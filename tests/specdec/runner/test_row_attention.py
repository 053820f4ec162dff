"""Attention row by row: the values of the other kind, and the same bits in any batch."""

from __future__ import annotations

import random

import pytest
import torch

from specdec.kernels.replacing import give_kernels
from specdec.runner.cache import SequenceCache
from specdec.runner.pool import KVPool
from specdec.runner.row_attention import ROW_ATTENTION_NAME
from specdec.runner.runner import ModelRunner, Work
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, VOCAB_SIZE, tiny_model
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

TOLERANCE = 1e-5
LENGTH = 70


def invariant_runner() -> ModelRunner:
    # Wide enough for the vectors of the processor, so that no element is left over at the end of a row.
    model = tiny_llama()
    give_kernels(model, "invariant")
    model.set_attn_implementation(ROW_ATTENTION_NAME)
    return ModelRunner(model, TINY_VOCAB_SIZE)


def some_tokens(generator: random.Random, count: int) -> list[int]:
    return [generator.randrange(VOCAB_SIZE) for _ in range(count)]


def one_by_one(runner: ModelRunner, token_ids: list[int]) -> torch.Tensor:
    cache = SequenceCache()
    return torch.cat([runner.forward([Work(cache, [token_id], 1)])[0] for token_id in token_ids])


@pytest.mark.parametrize("parents", [None, [-1, 0, 0, 1, 1, 3, 3], [-1, -1, 1, 2, 3, 4, 5, 6, 7]])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_values_are_those_of_the_other_kind(name: str, parents: list[int] | None) -> None:
    model = tiny_model(name)
    generator = random.Random(name)
    prefix, nodes = some_tokens(generator, 11), some_tokens(generator, 9 if parents is None else len(parents))
    logits = []
    for attention in (model.config._attn_implementation, ROW_ATTENTION_NAME):
        model.set_attn_implementation(attention)
        cache, other = SequenceCache(), SequenceCache()
        runner = ModelRunner(model, VOCAB_SIZE)
        runner.forward([Work(cache, prefix[:8], 0)])
        work = Work(cache, [*prefix[8:], *nodes], 1 + len(nodes), parents)
        logits.append(torch.cat(runner.forward([Work(other, prefix[:4], 1), work])))
    ragged, row_by_row = logits
    assert float((row_by_row - ragged).abs().max() / ragged.std()) < TOLERANCE


@pytest.mark.parametrize("seed", range(8))
def test_the_same_bits_in_any_batch(seed: int) -> None:
    runner = invariant_runner()
    generator = random.Random(seed)
    token_ids = some_tokens(generator, LENGTH)
    expected = one_by_one(runner, token_ids)
    pool = KVPool(64)
    cache, neighbour = SequenceCache(pool), SequenceCache(pool)
    logits = []
    while cache.length < LENGTH:
        count = min(generator.choice([1, 2, 3, 5, 8, 13, 40]), LENGTH - cache.length)
        work = Work(cache, token_ids[cache.length : cache.length + count], count)
        beside = Work(neighbour, some_tokens(generator, generator.choice([1, 4, 9])), 1)
        batch = generator.choice([[work], [work, beside], [beside, work]])
        logits.append(runner.forward(batch)[batch.index(work)])
    assert torch.equal(torch.cat(logits), expected)


def test_the_same_bits_along_a_path_of_a_tree() -> None:
    runner = invariant_runner()
    generator = random.Random(0)
    prefix, nodes = some_tokens(generator, 33), some_tokens(generator, 6)
    cache = SequenceCache()
    runner.forward([Work(cache, prefix[:-1], 0)])
    (logits,) = runner.forward([Work(cache, [prefix[-1], *nodes], 7, [-1, -1, 0, 0, 1, 4])])
    for row, path in enumerate(([], [0], [1], [0, 2], [0, 3], [1, 4], [1, 4, 5])):
        expected = one_by_one(runner, [*prefix, *(nodes[node] for node in path)])[-1]
        assert torch.equal(logits[row], expected)


def test_the_other_kind_does_depend_on_the_batch() -> None:
    # Or there would be no need for all this.
    model = tiny_llama()
    runner = ModelRunner(model, TINY_VOCAB_SIZE)
    token_ids = some_tokens(random.Random(0), LENGTH)
    (together,) = runner.forward([Work(SequenceCache(), token_ids, LENGTH)])
    assert not torch.equal(together, one_by_one(runner, token_ids))

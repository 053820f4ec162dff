"""Many sequences attended to in one call: the values that each gets alone, in as many calls for 64 as for two."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from specdec.runner import grouped_attention
from specdec.runner.attention import RaggedBatch, attend
from specdec.runner.cache import SequenceCache
from specdec.runner.grouped_attention import Group
from specdec.runner.pool import KVPool
from specdec.runner.runner import ModelRunner, Work
from specdec.runner.segment import Segment
from specdec.runner.storage import KVStorage
from tests.specdec.models.pretended_devices import FIRST, SECOND, divided_model, pretended_devices
from tests.specdec.runner.tiny_architectures import ARCHITECTURES, CONFIGS, VOCAB_SIZE, tiny_model

KV_HEADS, HEAD_DIM, LAYER = 2, 8, 0
TREE = [-1, 0, 0, 1, -1, 4]


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slots were gathered, call by call."""
    counts: list[int] = []
    gather = KVStorage.gather

    def note(self: KVStorage, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counts.append(len(slots))
        return gather(self, layer, slots)

    monkeypatch.setattr(KVStorage, "gather", note)
    return counts


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU passes for a device that is not the host."""
    be_elsewhere(monkeypatch)


def be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_attention, "_HOST", torch.device("meta"))


@dataclass(frozen=True)
class Shape:
    """Of one segment."""

    length: int
    num_rows: int
    parents: list[int] | None = None


MIXED = [
    Shape(40, 5),
    Shape(0, 3),
    Shape(21, 7, TREE),
    Shape(0, 1),
    Shape(13, 2, TREE),
    Shape(3, 50),
    Shape(100, 1),
    Shape(70, 6, TREE),
    Shape(15, 32),
]


def segments_of(shapes: Sequence[Shape], pool: KVPool, *, seed: int = 0, value_dim: int = HEAD_DIM) -> list[Segment]:
    """Sequences with random keys and values in one pool, whose blocks lie mixed; every other slot holds no number."""
    generator = torch.Generator().manual_seed(seed)
    num_slots = pool.blocks.num_blocks * pool.block_tokens
    nothing = torch.full((KV_HEADS, num_slots, HEAD_DIM), torch.nan)
    pool.storage.write(LAYER, nothing, nothing[..., :1].repeat(1, 1, value_dim), torch.arange(num_slots))
    caches = [SequenceCache(pool) for _ in shapes]
    while growing := [
        (cache, shape) for cache, shape in zip(caches, shapes, strict=True) if cache.length < shape.length
    ]:
        for cache, shape in growing:
            count = min(11, shape.length - cache.length)
            assert cache.prepare(count)
            cache.length += count
    for cache, shape in zip(caches, shapes, strict=True):
        assert cache.prepare(shape.num_rows)
        slots = torch.tensor(cache.slots(0, shape.length + shape.num_rows))
        keys = torch.randn((KV_HEADS, len(slots), HEAD_DIM), generator=generator)
        values = torch.randn((KV_HEADS, len(slots), value_dim), generator=generator)
        pool.storage.write(LAYER, keys, values, slots)
    return [Segment(cache, shape.num_rows, shape.parents) for cache, shape in zip(caches, shapes, strict=True)]


def query_of(segments: Sequence[Segment], groups: int) -> torch.Tensor:
    rows = sum(segment.num_rows for segment in segments)
    query = torch.randn((rows, KV_HEADS * groups, HEAD_DIM), generator=torch.Generator().manual_seed(1))
    return query.transpose(0, 1)


def attended(segments: Sequence[Segment], groups: int = 2, **options: Any) -> torch.Tensor:
    return attend(LAYER, query_of(segments, groups), KV_HEADS, RaggedBatch(segments), **options)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scaling": 0.7},
    "window": {"sliding_window": 6},
    "softcap": {"softcap": 2.0},
    "sinks": {"s_aux": True},
    "all": {"scaling": 0.7, "sliding_window": 6, "softcap": 2.0, "s_aux": True},
}


@pytest.mark.parametrize("value_dim", [HEAD_DIM, 5])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("groups", [1, 3])
def test_values_are_those_of_sequences_alone(
    groups: int, options: dict[str, Any], value_dim: int, gathered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "s_aux" in options:
        options = options | {"s_aux": torch.randn(KV_HEADS * groups, generator=torch.Generator().manual_seed(2))}
    segments = segments_of(MIXED, KVPool(64), value_dim=value_dim)
    assert max(len(segment.spans) for segment in segments) > 2
    # One is in another memory.
    segments[3:3] = segments_of([Shape(4, 3)], KVPool(1), value_dim=value_dim)
    expected = attended(segments, groups, **options)
    assert not gathered
    be_elsewhere(monkeypatch)
    found = attended(segments, groups, **options)
    # That one is alone, as is the one with many rows.
    assert gathered == [(len(MIXED) - 1) * 112]
    assert found.shape == (sum(segment.num_rows for segment in segments), KV_HEADS * groups, value_dim)
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


def test_sequences_without_company_stay_in_order(elsewhere: None, gathered: list[int]) -> None:
    segments = [*segments_of([Shape(4, 3)], KVPool(1)), *segments_of([Shape(3, 50)], KVPool(4), seed=1)]
    found = attended(segments)
    assert not gathered
    query = query_of(segments, 2)
    first = attend(LAYER, query[:, :3], KV_HEADS, RaggedBatch(segments[:1]))
    assert torch.equal(found[:3], first)


def test_layers_of_one_pass_may_have_different_windows(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = segments_of([Shape(30, 3), Shape(20, 6, TREE)], KVPool(8))
    batch, query = RaggedBatch(segments), query_of(segments, 2)
    windows = [4, None, 7, 4]
    found = [attend(LAYER, query, KV_HEADS, batch, sliding_window=window) for window in windows]
    monkeypatch.undo()
    for window, rows in zip(windows, found, strict=True):
        torch.testing.assert_close(rows, attended(segments, sliding_window=window), rtol=1e-5, atol=2e-6)
    assert not torch.allclose(found[0], found[1])


def served_logits(model: PreTrainedModel, seed: str) -> list[torch.Tensor]:
    """Of prefills, decode steps, windows, trees and what follows them, six sequences at a time."""
    runner = ModelRunner(model, VOCAB_SIZE)
    generator = random.Random(seed)
    pool = KVPool(64)
    caches = [SequenceCache(pool) for _ in range(6)]
    logits: list[torch.Tensor] = []
    for _ in range(6):
        works = []
        for cache in caches:
            count = generator.choice([1, 1, 5, 5, 7, 40])
            parents = TREE if count == 7 else None
            works.append(Work(cache, [generator.randrange(VOCAB_SIZE) for _ in range(count)], count, parents))
        logits += runner.forward(works)
        for work in works:
            if work.parents:
                work.cache.keep_rows(work.cache.length - len(TREE), [0, 2])
            elif generator.random() < 0.3:
                work.cache.truncate(work.cache.length - generator.randrange(len(work.token_ids)))
    return logits


def largest_difference(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    """Relative to the spread of the logits."""
    return max(float((two - one).abs().max() / one.std()) for one, two in zip(expected, found, strict=True))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_whole_models_give_the_logits_of_the_cpus_way(
    name: str, gathered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(name)
    expected = served_logits(model, name)
    assert not gathered
    be_elsewhere(monkeypatch)
    found = served_logits(model, name)
    # In each of two layers of each of six passes.
    assert len(gathered) >= 12
    assert largest_difference(expected, found) < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gpu_gives_the_logits_of_the_cpu(name: str, gathered: list[int]) -> None:
    expected = served_logits(tiny_model(name), name)
    model = tiny_model(name)
    torch.nn.Module.to(model, "cuda")
    found = [rows.cpu() for rows in served_logits(model, name)]
    assert len(gathered) >= 12
    assert largest_difference(expected, found) < 1e-3


def test_other_devices_attend_to_sequences_together(monkeypatch: pytest.MonkeyPatch, gathered: list[int]) -> None:
    """Both of two devices, and no indices or masks of another one (which would raise)."""
    config = CONFIGS["gemma2"]()
    placed = {"model.embed_tokens": FIRST, "model.rotary_emb": FIRST, "model.norm": SECOND, "lm_head": FIRST}
    placed |= {"model.layers.0": FIRST, "model.layers.1": SECOND}
    devices: list[torch.device] = []
    attend_together = Group.attend

    def note(self: Group, layer: int, query: torch.Tensor, *arguments: Any) -> torch.Tensor:
        devices.append(query.device)
        return attend_together(self, layer, query, *arguments)

    monkeypatch.setattr(Group, "attend", note)
    with pretended_devices(monkeypatch):
        runner = ModelRunner(divided_model(config, placed), VOCAB_SIZE)
        pool = KVPool(16)
        caches = [SequenceCache(pool) for _ in range(3)]
        runner.forward([Work(caches[0], list(range(40)), 0)])
        assert not devices
        works = [Work(caches[0], [1], 1), Work(caches[1], list(range(7)), 7, TREE), Work(caches[2], [4, 5], 2)]
        logits = runner.forward(works)
    assert devices == [FIRST, SECOND]
    # All three, of 41 tokens at most, padded.
    assert gathered == [3 * 48, 3 * 48]
    assert [tuple(rows.shape) for rows in logits] == [(1, VOCAB_SIZE), (7, VOCAB_SIZE), (2, VOCAB_SIZE)]


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what reaches a device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not func.is_view:
            self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def operations(num_segments: int) -> tuple[Counter[str], Counter[str]]:
    """Of the first layer of a pass, with all that it prepares, and of each one that follows."""
    shapes = [Shape(20 + index % 30, 1 + index % 5) for index in range(num_segments)]
    segments = segments_of(shapes, KVPool(8 * num_segments))
    batch, query = RaggedBatch(segments), query_of(segments, 2)
    counted = []
    for _ in range(2):
        with _Operations() as mode:
            attend(LAYER, query, KV_HEADS, batch)
        counted.append(mode.counts)
    return counted[0], counted[1]


def test_operations_do_not_grow_with_the_number_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = operations(64)
    assert alone[1].total() >= 64
    be_elsewhere(monkeypatch)
    few, many = operations(2), operations(64)
    assert many == few
    # Rows, keys and values gathered, attention, and rows again.
    assert few[1] == {"index": 2, "index_select": 1, "_scaled_dot_product_flash_attention_for_cpu": 1}


def test_lengths_that_are_too_different_are_apart(elsewhere: None, gathered: list[int]) -> None:
    lengths = [1000, 900, 620, 510, 300, 280, 100, 20, 10, 1]
    segments = segments_of([Shape(length - 1, 1) for length in lengths], KVPool(400))
    attended(segments)
    # Padded to multiples of 16, from the longest down to half of it; a few hundred tokens to any length.
    assert gathered == [4 * 1008, 2 * 304, 4 * 112]


def test_what_is_gathered_is_bounded(elsewhere: None, gathered: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    segments = segments_of([Shape(31, 1)] * 10, KVPool(64))
    of_token = 2 * KV_HEADS * HEAD_DIM * 4
    of_scores = 4 * 2 * KV_HEADS
    monkeypatch.setattr(grouped_attention, "_MOST_BYTES", 4 * 32 * (of_token + of_scores))
    attended(segments)
    assert gathered == [4 * 32, 4 * 32, 2 * 32]
    # And a sequence of which more would be copied than a call is worth is alone.
    gathered.clear()
    monkeypatch.setattr(grouped_attention, "_MOST_BYTES_OF_ONE", 31 * of_token)
    attended(segments)
    assert not gathered

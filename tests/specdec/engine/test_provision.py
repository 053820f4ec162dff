"""The pool of a service: as large as the budget, no larger than can be filled, and a context that fits into it."""

from __future__ import annotations

import logging

import pytest
import torch

from specdec.engine import provision
from specdec.engine.memory import CacheMemory
from specdec.engine.provision import provide_memory
from specdec.models.errors import ModelError
from specdec.runner.cache import SequenceCache
from specdec.runner.pool import BLOCK_TOKENS
from specdec.runner.runner import ModelRunner, Work
from specdec.runner.storage import KVStorage
from specdec.settings import ModelServiceSettings
from specdec.v1 import model_pb2
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

A_TOKEN = 2 * 2 * 8 * 2 * 4
"""Layers, key heads, size of a head, keys and values, float32."""
A_BLOCK = BLOCK_TOKENS * A_TOKEN


def make_info(context: int = 512, num_sequences: int = 4) -> model_pb2.ModelInfo:
    return model_pb2.ModelInfo(max_context_length=context, max_num_sequences=num_sequences, max_num_draft_tokens=8)


def provide(info: model_pb2.ModelInfo, **settings: object) -> CacheMemory:
    runner = ModelRunner(tiny_llama(), TINY_VOCAB_SIZE)
    return provide_memory(runner, info, ModelServiceSettings.model_validate(settings))


def test_a_budget_is_kept_to_the_block() -> None:
    memory = provide(make_info(), kv_cache_memory=40 * A_BLOCK + A_BLOCK - 1)
    assert memory.pool.blocks.num_blocks == memory.pool.blocks.num_available == 40
    # What a token takes is layers x key heads x head x 2 x size of an element, and nothing else.
    assert memory.pool.storage.bytes_per_slot == A_TOKEN
    assert memory.pool.storage.num_bytes == 40 * A_BLOCK


@pytest.mark.parametrize(("free", "share", "expected"), [(100, 0.0, 30), (100, 0.5, 50)])
def test_without_a_budget_it_is_a_share_of_what_is_free(
    free: int, share: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision, "free_memory_bytes", lambda device: free * A_BLOCK)
    assert provide(make_info(), kv_cache_share=share).pool.blocks.num_blocks == expected


def test_of_devices_that_share_the_layers_the_fullest_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    # A quarter of the layers on the first, the rest on the second.
    of_devices = {first: A_TOKEN // 4, second: A_TOKEN - A_TOKEN // 4}
    monkeypatch.setattr(KVStorage, "bytes_by_device", lambda self: of_devices)
    free = {first: 100 * A_BLOCK // 4, second: 60 * A_BLOCK * 3 // 4}
    monkeypatch.setattr(provision, "free_memory_bytes", free.__getitem__)
    assert provide(make_info(), kv_cache_share=0.5).pool.blocks.num_blocks == 30


def test_no_more_is_taken_than_all_sequences_can_fill() -> None:
    assert provide(make_info(), kv_cache_memory="1GiB").pool.blocks.num_blocks == 4 * 33


def test_a_budget_below_one_context_shortens_it_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    info = make_info()
    with caplog.at_level(logging.WARNING):
        provide(info, kv_cache_memory=10 * A_BLOCK)
    assert info.max_context_length == 10 * BLOCK_TOKENS - 8
    assert "the context served is 152 and not 512 tokens" in caplog.text


def test_a_budget_below_a_window_is_refused() -> None:
    with pytest.raises(ModelError, match=r"too few for windows of 8 draft tokens; give more with --kv-cache-memory"):
        provide(make_info(), kv_cache_memory=A_BLOCK)


def test_what_may_be_promised_is_a_setting() -> None:
    memory = provide(make_info(context=64, num_sequences=2), kv_overcommit=2.0, kv_cache_memory=10 * A_BLOCK)
    caches = [SequenceCache(memory.pool) for _ in range(4)]
    for cache in caches:
        memory.join(cache, 5 * BLOCK_TOKENS)
    assert memory.num_queued == 0


def test_a_sequence_of_the_advertised_context_and_a_window_runs(caplog: pytest.LogCaptureFixture) -> None:
    info = make_info()
    memory = provide(info, kv_cache_memory=6 * A_BLOCK)
    cache = SequenceCache(memory.pool)
    memory.join(cache, info.max_context_length + info.max_num_draft_tokens)
    runner = ModelRunner(tiny_llama(), TINY_VOCAB_SIZE)
    (logits,) = runner.forward([Work(cache, [1] * (info.max_context_length + info.max_num_draft_tokens), 1)])
    assert logits.isfinite().all()
    assert memory.pool.blocks.num_available == 0

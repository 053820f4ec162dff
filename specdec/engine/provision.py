"""From settings to the key-value memory of a service."""

from __future__ import annotations

import logging

import torch

from specdec.engine.memory import CacheMemory
from specdec.models.errors import ModelError
from specdec.runner.cache import SequenceCache
from specdec.runner.free_memory import free_memory_bytes
from specdec.runner.pool import KVPool
from specdec.runner.runner import ModelRunner, Work
from specdec.settings import ModelServiceSettings
from specdec.v1 import model_pb2

_CUDA_SHARE, _CPU_SHARE = 0.8, 0.3
_log = logging.getLogger(__name__)


def provide_memory(
    runner: ModelRunner,
    info: model_pb2.ModelInfo,
    settings: ModelServiceSettings,
    *,
    max_num_queued: int = 0,
) -> CacheMemory:
    """Make the pool of a loaded model, within the settings' budget. Runs the model twice; blocks.

    No more is taken than the advertised number of sequences of the advertised context can fill. If the budget does not
    even hold one, a shorter context is advertised.

    Args:
        runner: of the model.
        info: limits of the service; `max_context_length` is lowered if need be.
        settings: of the service.
        max_num_queued: sequences that may wait for memory.

    Raises:
        ModelError: the budget does not hold a single window.
    """
    trial = SequenceCache()
    runner.forward([Work(trial, [0], num_logits=0)])
    pool = KVPool(0)
    block_bytes = pool.block_tokens * trial.pool.storage.bytes_per_slot
    # Of devices that share the layers, the one with the least room says how many blocks there are.
    budget_bytes = settings.kv_cache_memory or min(
        int(_share(each, settings) * free_memory_bytes(each)) * trial.pool.storage.bytes_per_slot // slot_bytes
        for each, slot_bytes in trial.pool.storage.bytes_by_device().items()
    )
    window = info.max_num_draft_tokens
    of_one = pool.num_blocks(info.max_context_length + window)
    num_blocks = min(budget_bytes // block_bytes, info.max_num_sequences * of_one)
    longest = num_blocks * pool.block_tokens - window
    if longest < window + 2:
        raise ModelError(
            f"{budget_bytes} bytes of key-value memory hold {num_blocks * pool.block_tokens} tokens, too few for "
            f"windows of {window} draft tokens; give more with --kv-cache-memory"
        )
    if longest < info.max_context_length:
        _log.warning(
            "key-value memory of %d bytes holds %d tokens; the context served is %d and not %d tokens",
            budget_bytes,
            num_blocks * pool.block_tokens,
            longest,
            info.max_context_length,
        )
        info.max_context_length = longest
    pool = KVPool(num_blocks)
    # The tensors are made by the first pass; let it be now, if they do not fit.
    cache = SequenceCache(pool)
    runner.forward([Work(cache, [0], num_logits=0)])
    cache.release()
    _log.info(
        "key-value memory: %d blocks of %d tokens, %d bytes", num_blocks, pool.block_tokens, num_blocks * block_bytes
    )
    return CacheMemory(pool, overcommit=settings.kv_overcommit, max_num_queued=max_num_queued)


def _share(device: torch.device, settings: ModelServiceSettings) -> float:
    if settings.kv_cache_share:
        return settings.kv_cache_share
    return _CUDA_SHARE if device.type == "cuda" else _CPU_SHARE

"""B38: requests that end at any moment, and what is left of them a second later: nothing."""

from __future__ import annotations

import asyncio
import gc
import random
from dataclasses import dataclass
from typing import Any

import grpc.aio
import psutil

from draft_service.drafters.making import causal_lm_drafter
from draft_service.service import DraftService
from draft_service.settings import DraftSettings
from specdec.v1 import generation_pb2, sampling_pb2
from target_service.service import TargetService
from target_service.settings import TargetSettings
from tests.exactness.whole_system import hosted, loaded_llama, orchestrator
from tests.fuzz.healthy import healthy
from tests.fuzz.report import Found, Report
from tests.orchestrator.running import Running, request
from tests.tiny_models import TINY_VOCAB_SIZE

_NUM_CLIENTS = 12
_NUM_WARM_UP = 200
_LATER_SECONDS = 1.0
_KV_BYTES = 4 << 20
_MAX_GROWTH_BYTES = 16 << 20


@dataclass(frozen=True)
class Left:
    """What there is of requests."""

    sequences: int
    admitted: int
    leases: int
    blocks: int
    tasks: int


async def cancel_at_random(num_requests: int, seed: int) -> Report:
    """So many requests that are cancelled, or run into their deadline, or end well: after the last token, too.

    Raises:
        Found: something is left, memory has grown, or a status is a bug.
    """
    report = Report("cancels", seed)
    rng = random.Random(seed)
    # Memory that is full of cached prefixes after the warm-up, so that it does not look like growth.
    limits: dict[str, Any] = {"max_num_draft_tokens": 8, "max_num_sequences": 64, "kv_cache_memory": _KV_BYTES}
    target = TargetService(TargetSettings(**limits), lambda: loaded_llama(0))
    draft = DraftService(DraftSettings(**limits), lambda: causal_lm_drafter(loaded_llama(0), DraftSettings(**limits)))
    async with (
        hosted(target) as target_host,
        hosted(draft) as draft_host,
        orchestrator(target_host.address, draft_host.address, pipeline="candidates") as run,
    ):
        engines = [service._host._engine for service in (target, draft)]
        memories = [_memory(engine) for engine in engines]

        def left() -> Left:
            return Left(
                sum(engine.num_sequences for engine in engines if engine is not None),
                sum(memory.num_admitted + memory.num_queued for memory in memories),
                sum(len(engine._leases) for engine in engines if engine is not None),
                sum(memory.pool.blocks.num_used for memory in memories),
                len(asyncio.all_tasks()),
            )

        process = psutil.Process()
        await _cancel(run, rng, report, min(_NUM_WARM_UP, num_requests))
        await asyncio.sleep(_LATER_SECONDS)
        start = left()
        if (start.sequences, start.admitted, start.leases, start.blocks) != (0, 0, 0, 0):
            raise Found(f"{report}: {start} is left")
        gc.collect()
        warm_bytes = process.memory_info().rss
        async with healthy(run, report):
            await _cancel(run, rng, report, num_requests)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LATER_SECONDS
        while (now := left()) != start and loop.time() < deadline:  # noqa: ASYNC110 - counts of several threads
            await asyncio.sleep(0.01)
        if now != start:
            raise Found(f"{report}: {now} is left, and at the start it was {start}")
        report.answers["ms until nothing was left"] = round(1000 * (loop.time() - deadline + _LATER_SECONDS))
        gc.collect()
        growth_bytes = process.memory_info().rss - warm_bytes
        report.answers["KiB of growth"] = max(growth_bytes >> 10, 0)
        if growth_bytes > _MAX_GROWTH_BYTES:
            raise Found(f"{report}: memory has grown by {growth_bytes} bytes")
    return report


def _memory(engine: Any) -> Any:
    return engine._memory if hasattr(engine, "_memory") else engine._drafter._memory


async def _cancel(run: Running, rng: random.Random, report: Report, num_requests: int) -> None:
    end = report.num_messages + num_requests

    async def client() -> None:
        while report.num_messages < end:
            report.num_messages += 1
            await _one(run, rng, report)

    await asyncio.gather(*(client() for _ in range(_NUM_CLIENTS)))


async def _one(run: Running, rng: random.Random, report: Report) -> None:
    prompt = [rng.randrange(TINY_VOCAB_SIZE) for _ in range(rng.choice((1, 3, 40, 120)))]
    asked = request(
        prompt,
        rng.choice((1, 4, 24)),
        rng.choice((0, 2, 8)),
        sampling=sampling_pb2.SamplingParams(seed=rng.randrange(1000), temperature=rng.choice((0.0, 0.8))),
        num_completions=rng.choice((1, 1, 1, 3)),
    )
    way = rng.randrange(6)
    timeout = rng.uniform(0.0005, 0.05) if way == 0 else 30.0
    num_read = rng.choice((0, 1, 2, 5)) if way in (1, 2) else None
    call: Any
    if way == 3:
        call = run.stub.GenerateUnary(generation_pb2.GenerateUnaryRequest(request=asked), timeout=timeout)
    else:
        call = run.stub.Generate(asked, timeout=timeout)
    if way in (3, 4):
        asyncio.get_running_loop().call_later(rng.uniform(0, 0.05), call.cancel)
    try:
        if way == 3:
            await call
        elif num_read != 0:
            async for _ in call:
                if num_read is not None:
                    num_read -= 1
                    if num_read == 0:
                        break
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        if not call.done():
            raise
    call.cancel()
    report.status(await call.code(), await call.details())

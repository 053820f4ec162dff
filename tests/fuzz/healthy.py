"""A healthy request, again and again beside the hostile ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from specdec.v1 import generation_pb2, sampling_pb2
from tests.fuzz.report import Found, Report
from tests.orchestrator.running import Running, request

MAX_NEW_TOKENS = 12
_PAUSE_SECONDS = 0.1


def healthy_request() -> generation_pb2.GenerateRequest:
    """By the coupled rule, so that its text depends on the target and the seed alone."""
    return request([5, 9, 200], MAX_NEW_TOKENS, 4, sampling=sampling_pb2.SamplingParams(temperature=0.8, seed=11))


@asynccontextmanager
async def healthy(run: Running, report: Report, expected: Sequence[int] | None = None) -> AsyncIterator[None]:
    """While the block runs, one healthy request follows the other, and one more comes after it.

    Args:
        run: the orchestrator.
        report: counts them.
        expected: their tokens; None: those of the first, which has the services to itself.

    Raises:
        Found: one of them has failed, or has other tokens.
    """
    tokens = list(expected) if expected is not None else (await run.generate(healthy_request())).token_ids
    is_over = asyncio.Event()

    async def once() -> None:
        found = (await run.generate(healthy_request())).token_ids
        if found != tokens:
            raise Found(f"{report}: a healthy request has other tokens than alone")
        report.num_healthy += 1

    async def repeat() -> None:
        while not is_over.is_set():
            await once()
            await asyncio.sleep(_PAUSE_SECONDS)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        is_over.set()
        await task
    await once()

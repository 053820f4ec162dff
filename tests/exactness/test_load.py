"""Many requests through the whole system, in memory too small for them: each text is its own, and no memory is lost."""

from __future__ import annotations

import asyncio
import gc
import random
from contextlib import AsyncExitStack
from typing import Any

import psutil
import pytest

from draft_service.drafters.making import causal_lm_drafter
from draft_service.service import DraftService
from draft_service.settings import DraftSettings
from specdec.client import GenerationClient
from specdec.sampling.params import SamplingParams
from specdec.v1 import generation_pb2
from target_service.service import TargetService
from target_service.settings import TargetSettings
from tests.exactness.whole_system import PlainDecoding, hosted, loaded_llama, orchestrator

NUM_TOKENS = 10
NEAR_TIE = 1e-4
A_BLOCK = 16 * 2 * 2 * 8 * 2 * 4
"""Bytes: tokens, layers, key heads, size of a head, keys and values, float32."""
_PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, seed=11),
    SamplingParams(temperature=0.8, top_p=0.9, frequency_penalty=0.5, seed=12),
)
_SETTINGS: dict[str, Any] = {
    "max_num_draft_tokens": 4,
    "kv_cache_memory": 26 * A_BLOCK,
    "kv_overcommit": 3.0,
    "max_batch_rows": 96,
}


class Request:
    """A prompt, what to do with it, and what the target alone makes of it."""

    def __init__(self, source: random.Random, prefixes: list[list[int]], index: int) -> None:
        own = [source.randrange(2, 320) for _ in range(source.randrange(1, 20))]
        self.prompt = [*source.choice(prefixes), *own]
        self.params = _PARAMS[index % len(_PARAMS)]
        plain = PlainDecoding(self.prompt, self.params)
        plain.run(NUM_TOKENS)
        self.text = plain.output
        self.hangs_on_a_tie = plain.smallest_gap < NEAR_TIE

    def message(self, num_draft_tokens: int) -> generation_pb2.GenerateRequest:
        sampling = self.params.to_proto()
        sampling.ignore_eos = True
        return generation_pb2.GenerateRequest(
            token_ids=generation_pb2.TokenIds(ids=self.prompt),
            sampling=sampling,
            max_new_tokens=NUM_TOKENS,
            num_draft_tokens=num_draft_tokens,
        )


def make_requests(count: int) -> list[Request]:
    source = random.Random(8)
    prefixes = [[source.randrange(2, 320) for _ in range(length)] for length in (0, 20, 40, 70)]
    requests = [Request(source, prefixes, index) for index in range(count)]
    return [request for request in requests if not request.hangs_on_a_tie]


class Load:
    """Sends requests, so many at once, and checks every text.

    Args:
        client: of the orchestrator.
        requests: in turn.
        num_clients: how many at once.
    """

    def __init__(self, client: GenerationClient, requests: list[Request], num_clients: int) -> None:
        self._client = client
        self._requests = requests
        self._places = asyncio.Semaphore(num_clients)
        self._source = random.Random(3)
        self.num_sent = self.num_cancelled = self.num_cached_tokens = 0

    async def run(self, count: int) -> None:
        """Some more requests, to their ends."""
        await asyncio.gather(*(self._one() for _ in range(count)))

    async def _one(self) -> None:
        async with self._places:
            request = self._requests[self.num_sent % len(self._requests)]
            self.num_sent += 1
            message = request.message(self._source.choice([0, 2, 4]))
            cancelled_after = self._source.randrange(NUM_TOKENS) if self._source.random() < 0.2 else None
            token_ids: list[int] = []
            async for response in self._client.generate(message):
                token_ids += response.delta.token_ids
                if cancelled_after is not None and len(token_ids) > cancelled_after:
                    self.num_cancelled += 1
                    break
                self.num_cached_tokens += response.finished.usage.num_cached_tokens
            assert token_ids == request.text[: len(token_ids)]
            assert cancelled_after is not None or len(token_ids) == NUM_TOKENS


async def run_load(counts: list[int], num_clients: int = 12) -> tuple[list[int], Load]:
    """Resident bytes of this process after each part of the load, and the load."""
    requests = make_requests(24)
    resident = []
    target = TargetService(TargetSettings(**_SETTINGS, max_queued_sequences=64), lambda: loaded_llama(0))
    settings = DraftSettings(**_SETTINGS)
    draft = DraftService(settings, lambda: causal_lm_drafter(loaded_llama(0), settings))
    async with AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(hosted(service)) for service in (target, draft)]
        run = await stack.enter_async_context(orchestrator(*(host.address for host in hosts)))
        client = await stack.enter_async_context(GenerationClient(run.host.address, timeout_seconds=120))
        load = Load(client, requests, num_clients)
        for count in counts:
            await load.run(count)
            gc.collect()
            resident.append(psutil.Process().memory_info().rss)
    return resident, load


async def test_every_text_under_load_is_that_of_the_request_alone() -> None:
    _, load = await run_load([60])
    assert load.num_sent == 60
    assert load.num_cancelled > 3
    assert load.num_cached_tokens > 200


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_two_thousand_requests_leave_no_memory_behind() -> None:
    (early, late), load = await run_load([200, 1800])
    assert load.num_cancelled > 200
    assert late <= 1.05 * early, f"{early} bytes were resident after 200 requests, {late} after 2,000"
    print(f"resident after 200 requests: {early}, after 2,000: {late}, ratio {late / early:.4f}")

"""Many requests, every mode of the pipeline, several round trips with jitter, and links that are cut: the same ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from benchmarks.links.conditions import LinkConditions
from benchmarks.links.relay_process import RelayProcess
from draft_service.drafters.drafter import Drafter
from specdec.client import GenerationClient, GenerationResult
from specdec.v1 import generation_pb2
from tests.exactness.whole_system import draft_service, hosted, orchestrator, reading_features, same_model
from tests.exactness.whole_system import target_service as target

NUM_TOKENS = 24
MODES = ("off", "ahead", "candidates", "auto")
RTTS_SECONDS = (0.0005, 0.02, 0.08)
AT_ONCE = 8
MOST_ATTEMPTS = 300
REQUESTS_FOR_EACH_CUT = 12
MAKERS: dict[str, Callable[[Path], Drafter]] = {"same model": lambda _: same_model(), "features": reading_features}


def requests(count: int) -> list[generation_pb2.GenerateRequest]:
    """Different prompts, seeds and K."""
    made = []
    for number in range(count):
        prompt = [5 + (7 * number + 3 * place * place) % 90 for place in range(3 + number % 11)]
        request = generation_pb2.GenerateRequest(
            token_ids=generation_pb2.TokenIds(ids=prompt), max_new_tokens=NUM_TOKENS, num_draft_tokens=1 + number % 6
        )
        request.sampling.temperature = 0.8
        request.sampling.seed = number
        request.sampling.ignore_eos = True
        made.append(request)
    return made


async def attempt(client: GenerationClient, request: generation_pb2.GenerateRequest) -> GenerationResult | None:
    """None: it came while the link was down. One that has begun goes on."""
    try:
        return await client.collect(request)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE and "not available" in str(error.details()):
            return None
        raise


async def collect(address: str, asked: list[generation_pb2.GenerateRequest]) -> list[GenerationResult]:
    """Every answer; some requests at a time."""
    turns = asyncio.Semaphore(AT_ONCE)
    async with GenerationClient(address, timeout_seconds=240) as client:

        async def one(request: generation_pb2.GenerateRequest) -> GenerationResult:
            async with turns:
                for _ in range(MOST_ATTEMPTS):
                    if (result := await attempt(client, request)) is not None:
                        return result
                    await asyncio.sleep(0.1)
                raise TimeoutError("the link did not come back")

        return await asyncio.gather(*map(one, asked))


async def check(
    count: int, rtts: Sequence[float], seconds_between_cuts: float, make_drafter: Callable[[], Drafter]
) -> None:
    asked = requests(count)
    async with AsyncExitStack() as stack:
        target_host = await stack.enter_async_context(hosted(target()))
        draft_host = await stack.enter_async_context(hosted(draft_service(make_drafter)))
        plain = await stack.enter_async_context(orchestrator(target_host.address))
        expected = [result.token_ids for result in await collect(plain.host.address, asked)]
        num_cuts = num_accepted = 0
        for rtt in rtts:
            conditions = LinkConditions(rtt_seconds=rtt, jitter_seconds=rtt / 3, seed=1)
            relay = await stack.enter_async_context(RelayProcess(target_host.address, conditions))
            for mode in MODES:
                run = await stack.enter_async_context(orchestrator(relay.address, draft_host.address, pipeline=mode))
                collecting = asyncio.ensure_future(collect(run.host.address, asked))
                # More of them, or sooner, would be a target that nobody can use.
                for _ in range(max(1, count // REQUESTS_FOR_EACH_CUT)):
                    if not (await asyncio.wait([collecting], timeout=seconds_between_cuts))[0]:
                        await relay.cut()
                        num_cuts += 1
                results = await collecting
                assert [result.token_ids for result in results] == expected, f"{mode} at {rtt} s"
                num_accepted += sum(report.num_accepted_tokens for result in results for report in result.rounds)
    assert num_cuts > 2
    assert num_accepted > count


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.timeout(600)
async def test_ids_are_the_same_in_every_mode(name: str, tmp_path: Path) -> None:
    await check(12, RTTS_SECONDS[-1:], 0.8, lambda: MAKERS[name](tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.timeout(3600)
async def test_ids_of_two_hundred_requests_are_the_same_in_every_mode(name: str, tmp_path: Path) -> None:
    await check(200, RTTS_SECONDS, 2.5, lambda: MAKERS[name](tmp_path))

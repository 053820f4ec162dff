"""Temperature 0.8: the text is a function of the target and the seed, whatever becomes of the drafts."""

from __future__ import annotations

import asyncio

import pytest_asyncio

from specdec.client import GenerationClient, GenerationResult
from specdec.v1 import generation_pb2
from tests.end_to_end.conftest import Deployment
from tests.end_to_end.prompts import PROMPTS
from tests.end_to_end.requests import chat_request, generate_all

NUM_PROMPTS = 4


def _requests(
    num_draft_tokens: int | None, *, first_seed: int = 1, tenant: str = ""
) -> list[generation_pb2.GenerateRequest]:
    return [
        chat_request(prompt, num_draft_tokens=num_draft_tokens, temperature=0.8, seed=first_seed + index, tenant=tenant)
        for index, prompt in enumerate(PROMPTS[:NUM_PROMPTS])
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plain(deployment: Deployment) -> list[list[int]]:
    return [result.token_ids for result in await generate_all(deployment.ngram, _requests(0))]


async def test_ids_do_not_depend_on_the_drafter(deployment: Deployment, plain: list[list[int]]) -> None:
    for address in (deployment.ngram, deployment.same, deployment.wrong):
        results = await generate_all(address, _requests(4))
        assert [result.token_ids for result in results] == plain
    results = await generate_all(deployment.combined, [*_requests(4), *_requests(None)])
    assert [result.token_ids for result in results] == [*plain, *plain]


async def test_past_outputs_make_it_faster_and_change_nothing(deployment: Deployment, plain: list[list[int]]) -> None:
    num_rounds = []
    for tenant in ("", "acme", "acme", ""):
        results = await generate_all(deployment.suffix, _requests(8, tenant=tenant))
        assert [result.token_ids for result in results] == plain
        num_rounds.append(sum(result.finished.stats.num_rounds for result in results if result.finished))
    nobody, first, again, nobody_again = num_rounds
    assert again < 0.5 * first
    assert nobody_again > 0.8 * nobody


async def test_ids_depend_on_the_seed(deployment: Deployment, plain: list[list[int]]) -> None:
    results = await generate_all(deployment.ngram, _requests(0, first_seed=1000))
    assert all(result.token_ids != ids for result, ids in zip(results, plain, strict=True))


async def test_killing_the_draft_service_in_mid_stream_changes_nothing(
    deployment: Deployment, plain: list[list[int]]
) -> None:
    async def collect(client: GenerationClient, request: generation_pb2.GenerateRequest) -> GenerationResult:
        result = GenerationResult()
        async for response in client.generate(request):
            result.add(response)
            if len(result.token_ids) > 20:
                deployment.group["draft-same"].kill()
        return result

    try:
        async with GenerationClient(deployment.same, timeout_seconds=240) as client:
            results = await asyncio.gather(*(collect(client, request) for request in _requests(4)))
    finally:
        await deployment.group["draft-same"].wait()
        await deployment.group.restart("draft-same")
    assert [result.token_ids for result in results] == plain
    stats = [result.finished.stats for result in results if result.finished]
    assert sum(stat.num_fallback_rounds for stat in stats) > 0

    # It is used again once it is back.
    for _ in range(50):
        result = (await generate_all(deployment.same, _requests(4)[:1]))[0]
        assert result.token_ids == plain[0]
        if result.finished and result.finished.stats.num_accepted_tokens:
            return
        await asyncio.sleep(0.2)
    raise AssertionError("the draft service was not used again")

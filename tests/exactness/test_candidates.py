"""Through the whole system and a link with jitter: the text is the same in every mode of the pipeline."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from benchmarks.links.conditions import LinkConditions
from benchmarks.links.relay_process import RelayProcess
from specdec.client import GenerationClient, GenerationResult
from specdec.sampling.params import SamplingParams
from specdec.v1 import generation_pb2
from tests.exactness.whole_system import PlainDecoding, draft_service, hosted, orchestrator, same_model, target_service

PROMPT = [5, 17, 99, 17, 5, 42, 99, 17, 5]
NUM_TOKENS = 48
NEAR_TIE = 1e-4
SEEDS = range(3)
CONDITIONS = LinkConditions(rtt_seconds=0.04, jitter_seconds=0.015, seed=1)
"""The drafter has made its continuations long before a verdict is back, sometimes before it is given."""
MODES = ("off", "ahead", "candidates", "auto")


@pytest.fixture(scope="module")
def plain() -> dict[int, list[int]]:
    """What the target alone writes, by seed."""
    texts = {}
    for seed in SEEDS:
        decoding = PlainDecoding(PROMPT, SamplingParams(temperature=0.8, seed=seed))
        decoding.run(NUM_TOKENS)
        assert decoding.smallest_gap > NEAR_TIE, "it hangs on a near-tie; choose other seeds"
        texts[seed] = decoding.output
    return texts


def asked(seed: int, num_draft_tokens: int, **sampling: object) -> generation_pb2.GenerateRequest:
    request = generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=PROMPT), max_new_tokens=NUM_TOKENS, num_draft_tokens=num_draft_tokens
    )
    request.sampling.CopyFrom(SamplingParams(temperature=0.8, seed=seed).to_proto())
    request.sampling.ignore_eos = True
    for name, value in sampling.items():
        getattr(request.sampling, name).extend(value)
    return request


def num_candidates(results: list[GenerationResult]) -> int:
    return sum(report.is_candidate for result in results for report in result.rounds)


@pytest.mark.timeout(300)
async def test_the_text_is_the_same_under_jitter(plain: dict[int, list[int]]) -> None:
    counts = {}
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(hosted(target_service()))
        draft = await stack.enter_async_context(hosted(draft_service(same_model)))
        relay = await stack.enter_async_context(RelayProcess(target.address, CONDITIONS))
        for mode in MODES:
            run = await stack.enter_async_context(orchestrator(relay.address, draft.address, pipeline=mode))
            client = await stack.enter_async_context(GenerationClient(run.host.address, timeout_seconds=120))
            alone = [await client.collect(asked(seed, 2)) for seed in SEEDS]
            together = await asyncio.gather(*(client.collect(asked(seed, k)) for seed in SEEDS for k in (1, 4)))
            for seed, result in zip(SEEDS, alone, strict=True):
                assert result.token_ids == plain[seed], mode
            for number, result in enumerate(together):
                assert result.token_ids == plain[SEEDS[number // 2]], mode
            counts[mode] = num_candidates(alone)
            # A stop within whatever is under way, and a request that is given up meanwhile.
            stop = plain[0][20]
            stopped = await client.collect(asked(0, 3, stop_token_ids=[stop]))
            assert stopped.token_ids == plain[0][: plain[0].index(stop) + 1]
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.collect(asked(1, 2)), 0.3)
            assert (await client.collect(asked(1, 2))).token_ids == plain[1]
    assert counts["off"] == counts["ahead"] == 0
    assert counts["candidates"] > 3, "the drafter has the target's own weights and all the time of the link"


@pytest.mark.timeout(300)
async def test_cuts_of_the_link_change_nothing(plain: dict[int, list[int]]) -> None:
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(hosted(target_service()))
        draft = await stack.enter_async_context(hosted(draft_service(same_model)))
        relay = await stack.enter_async_context(RelayProcess(target.address, CONDITIONS))
        run = await stack.enter_async_context(orchestrator(relay.address, draft.address, pipeline="candidates"))
        client = await stack.enter_async_context(GenerationClient(run.host.address, timeout_seconds=120))
        generating = asyncio.gather(*(client.collect(asked(seed, 2)) for seed in SEEDS))
        for _ in range(3):
            await asyncio.sleep(0.35)
            await relay.cut()
        for seed, result in zip(SEEDS, await generating, strict=True):
            assert result.token_ids == plain[seed]

"""Coupled rule, through the whole system: the text is a function of target, request and seed, and of nothing else."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from draft_service.drafters.drafter import Drafter
from orchestrator.catch_up import CatchUp
from orchestrator.links import link
from orchestrator.window_size import FixedWindowSize
from orchestrator.window_sizes import WindowSizes
from specdec.client import GenerationClient, GenerationResult
from specdec.sampling.params import SamplingParams
from specdec.telemetry import names
from specdec.v1 import draft_pb2, generation_pb2
from tests.exactness.cuttable_relay import CuttableRelay
from tests.exactness.whole_system import (
    MAX_NUM_DRAFT_TOKENS,
    PlainDecoding,
    combined,
    draft_service,
    hosted,
    orchestrator,
    other_model,
    prompt_lookup,
    reading_features,
    same_model,
    short_vocabulary,
    suffix,
    target_service,
)
from tests.orchestrator.running import Running
from tests.orchestrator.serving import until

PROMPT = [5, 17, 99, 17, 5, 42, 99, 17, 5]
NUM_TOKENS = 20
NEAR_TIE = 1e-4
"""Logits of a row differ by a few millionths with its batch; no token below may hang on so little."""

REQUESTS = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(seed=1),
    "temperature 0.6, top-p": SamplingParams(temperature=0.6, top_p=0.8, seed=2),
    "top-k, min-p": SamplingParams(top_k=40, min_p=0.02, seed=3),
    "typical-p": SamplingParams(temperature=0.9, typical_p=0.7, seed=4),
    "penalties": SamplingParams(
        temperature=0.3, repetition_penalty=1.2, frequency_penalty=0.8, presence_penalty=0.4, seed=5
    ),
    "no-repeat-ngram": SamplingParams(temperature=0.2, no_repeat_ngram_size=2, seed=6),
    "bias": SamplingParams(logit_bias={17: 5.0, 99: 4.0, 5: -100.0}, seed=7),
    "banned": SamplingParams(temperature=0.5, banned_token_ids=tuple(range(0, 320, 3)), seed=8),
    "allowed": SamplingParams(temperature=0.5, allowed_token_ids=(5, 17, 42, 99, 100), seed=9),
    "fewest new tokens": SamplingParams(
        allowed_token_ids=(5, 17, 42, 99), stop_token_ids=(42,), min_new_tokens=12, seed=10
    ),
    "penalties at temperature 0": SamplingParams(temperature=0.0, frequency_penalty=1.5, repetition_penalty=1.1),
}


def generate_request(params: SamplingParams, num_draft_tokens: int, tenant: str = "") -> generation_pb2.GenerateRequest:
    """A request whose resolved parameters are these."""
    sampling = params.to_proto()
    sampling.ignore_eos = True  # Its stop tokens are all that there are.
    return generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=PROMPT),
        sampling=sampling,
        max_new_tokens=NUM_TOKENS,
        num_draft_tokens=num_draft_tokens,
        tenant=tenant,
    )


@pytest.fixture(scope="module")
def plain() -> dict[str, list[int]]:
    """What the target alone writes for each request."""
    texts = {}
    for name, params in REQUESTS.items():
        decoding = PlainDecoding(PROMPT, params)
        decoding.run(NUM_TOKENS)
        assert decoding.smallest_gap > NEAR_TIE, f"{name} hangs on a near-tie; choose another seed"
        texts[name] = decoding.output
    assert len({tuple(text) for text in texts.values()}) == len(texts)
    return texts


async def generate_all(
    client: GenerationClient, ks: Sequence[int], tenant: str = ""
) -> dict[tuple[str, int], GenerationResult]:
    """Every request with each K, all at once."""
    asked = {(name, k): generate_request(params, k, tenant) for name, params in REQUESTS.items() for k in ks}
    results = await asyncio.gather(*(client.collect(request) for request in asked.values()))
    return dict(zip(asked, results, strict=True))


def assert_equal(results: dict[tuple[str, int], GenerationResult], plain: dict[str, list[int]]) -> None:
    for (name, k), result in results.items():
        assert result.finished is not None
        assert result.token_ids == plain[name], f"{name}, K = {k}"


def num_windows(results: dict[tuple[str, int], GenerationResult]) -> Counter[int]:
    """Windows with draft tokens, by where these came from."""
    rounds = [report for result in results.values() for report in result.rounds]
    return Counter(report.draft_source for report in rounds if report.num_draft_tokens)


def acceptance_rate(results: dict[tuple[str, int], GenerationResult]) -> float:
    stats = [result.finished.stats for result in results.values() if result.finished]
    return sum(each.num_accepted_tokens for each in stats) / sum(each.num_draft_tokens for each in stats)


async def _num_rounds(run: Running, enough: float) -> None:
    """Wait until more rounds than these are over."""
    await until(lambda: run.counting.total(names.ROUND_DURATION) > enough, seconds=30)


async def test_ids_depend_on_neither_drafter_nor_k_nor_batch_mates(plain: dict[str, list[int]], tmp_path: Path) -> None:
    """Several orchestrators at one target, so that all their sequences share its passes."""

    def short() -> Drafter:
        return short_vocabulary(tmp_path / "short")

    def features() -> Drafter:
        return reading_features(tmp_path / "features")

    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(hosted(target_service()))
        clients = {}
        for load in (None, prompt_lookup, other_model, same_model, suffix, combined, short, features):
            draft = await stack.enter_async_context(hosted(draft_service(load))) if load else None
            run = await stack.enter_async_context(orchestrator(target.address, draft.address if draft else ""))
            client = GenerationClient(run.host.address, timeout_seconds=120)
            clients[load] = await stack.enter_async_context(client)
        without, lookup, other, same, first, both, scarce, foreseen = await asyncio.gather(
            generate_all(clients[None], (0,)),
            generate_all(clients[prompt_lookup], (2, 5)),
            generate_all(clients[other_model], (1, 3)),
            generate_all(clients[same_model], (0, 1, 2, 4, 6, 7, MAX_NUM_DRAFT_TOKENS)),
            generate_all(clients[suffix], (3,), "tenant"),
            generate_all(clients[combined], (2, 5)),
            generate_all(clients[short], (4,)),
            generate_all(clients[features], (1, 4, 6)),
        )
        again = await generate_all(clients[suffix], (4,), "tenant")
        nobody = await generate_all(clients[suffix], (4,))
    for results in (without, lookup, other, same, first, both, scarce, foreseen, again, nobody):
        assert_equal(results, plain)
    # The draft tokens mattered: right ones were accepted, wrong ones were not.
    for (name, k), result in same.items():
        assert result.finished is not None
        stats = result.finished.stats
        assert stats.num_accepted_tokens == stats.num_draft_tokens, f"{name}, K = {k}"
        assert (stats.num_draft_tokens > 0) == (k > 0)
    for results in (lookup, other, first, nobody):
        assert acceptance_rate(results) < 0.5
    # Both sources made windows.
    sources = num_windows(both)
    assert min(sources[draft_pb2.DRAFT_SOURCE_MODEL], sources[draft_pb2.DRAFT_SOURCE_SUFFIX]) > 10
    assert acceptance_rate(both) > acceptance_rate(lookup)
    # A token in three can be proposed at all, and where the target chooses one of them the draft does too.
    assert 0.05 < acceptance_rate(scarce) < 0.9
    # One that reads features, and has not been trained to, is seldom right; nobody fails it.
    assert 0.01 < acceptance_rate(foreseen) < 0.9
    assert all(result.finished and not result.finished.stats.num_fallback_rounds for result in foreseen.values())
    # The tenant has been answered the same before; a request of nobody is not helped by that.
    assert num_windows(again)[draft_pb2.DRAFT_SOURCE_MEMORY] > num_windows(again)[draft_pb2.DRAFT_SOURCE_SUFFIX]
    assert acceptance_rate(again) > 0.6
    assert not num_windows(nobody)[draft_pb2.DRAFT_SOURCE_MEMORY]


@pytest.mark.parametrize("kind", ["model", "features"])
async def test_ids_do_not_depend_on_trees(
    plain: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """Windows of one and of two steps, with runners-up of these."""

    def load() -> Drafter:
        return other_model() if kind == "model" else reading_features(tmp_path)

    def choose(size: FixedWindowSize) -> WindowSizes:
        return WindowSizes(size.num_draft_tokens, size.num_draft_tokens, 1 + size.num_draft_tokens % 2)

    monkeypatch.setattr(FixedWindowSize, "choose", choose)
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(hosted(target_service()))
        draft = await stack.enter_async_context(hosted(draft_service(load)))
        run = await stack.enter_async_context(orchestrator(target.address, draft.address))
        client = await stack.enter_async_context(GenerationClient(run.host.address, timeout_seconds=120))
        chains = await generate_all(client, (1,))
        trees = await generate_all(client, (3, 4, 7))
    assert_equal(trees, plain)
    # Runners-up are right where chains are not.
    assert sum(len(result.rounds) for result in trees.values()) < 3 * sum(
        len(result.rounds) for result in chains.values()
    )
    assert all(result.finished and not result.finished.stats.num_fallback_rounds for result in trees.values())


@pytest.mark.parametrize("kind", ["model", "combined", "features"])
async def test_ids_do_not_depend_on_whether_a_proposal_is_waited_for(
    plain: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """Whoever lacks more than a few tokens gets no time at all: the outcomes of plain rounds are told together."""

    def load() -> Drafter:
        return (
            {"model": other_model, "combined": combined}[kind]() if kind != "features" else reading_features(tmp_path)
        )

    def patience_seconds(_: CatchUp, num_tokens: int, *, by_lookup: bool = False) -> float:
        return math.inf if num_tokens < 6 and not by_lookup else 0.0

    monkeypatch.setattr(CatchUp, "patience_seconds", patience_seconds)
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(hosted(target_service()))
        draft = await stack.enter_async_context(hosted(draft_service(load)))
        for pipeline in ("off", "ahead", "candidates"):
            run = await stack.enter_async_context(orchestrator(target.address, draft.address, pipeline=pipeline))
            client = await stack.enter_async_context(GenerationClient(run.host.address, timeout_seconds=120))
            results = await generate_all(client, (1, 5))
            assert_equal(results, plain)
            causes = run.counting.by_attribute(names.FALLBACKS)
            assert causes.pop("prefill") >= len(results)
            assert set(causes) <= {"empty"}
            assert run.counting.by_attribute(names.RESYNCS) == {}
            assert sum(report.num_accepted_tokens for result in results.values() for report in result.rounds) > 0


@pytest.mark.parametrize("kind", ["combined", "features"])
async def test_ids_depend_on_neither_cut_streams_nor_another_replica(
    plain: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """Streams are cut in the middle of texts, and half-way the target is replaced by another one."""

    def load() -> Drafter:
        return combined() if kind == "combined" else reading_features(tmp_path)

    monkeypatch.setattr(link, "_FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(link, "_LAST_RETRY_SECONDS", 0.05)
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(hosted(target_service())) for _ in range(2)]
        draft = await stack.enter_async_context(hosted(draft_service(load)))
        to_target = await stack.enter_async_context(CuttableRelay(first.address))
        to_draft = await stack.enter_async_context(CuttableRelay(draft.address))
        run = await stack.enter_async_context(orchestrator(to_target.address, to_draft.address))
        client = await stack.enter_async_context(GenerationClient(run.host.address, timeout_seconds=120))
        generating = asyncio.create_task(generate_all(client, (0, 2, 5), "tenant"))
        num_rounds = 0.0
        for cut in (to_draft.cut, to_target.cut, to_target.cut, to_draft.cut, to_target.cut):
            num_rounds += 40
            await _num_rounds(run, num_rounds)
            cut()
            to_target.peer = second.address
        assert not generating.done(), "the cuts came too late to matter"
        results = await generating
        resyncs = run.counting.by_attribute(names.RESYNCS)
        assert resyncs["target"] >= 3
        assert resyncs["draft"] >= 1
    assert_equal(results, plain)

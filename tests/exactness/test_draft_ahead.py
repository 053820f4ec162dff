"""Through the whole system: what is drafted ahead changes when the text comes, and nothing about the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from draft_service.drafters.drafter import Drafter
from draft_service.drafters.making import combined_drafter
from draft_service.settings import DraftSettings
from specdec.client import GenerationClient
from specdec.sampling.params import SamplingParams
from specdec.v1 import draft_pb2, generation_pb2, model_pb2
from tests.exactness.whole_system import (
    combined,
    draft_service,
    hosted,
    orchestrator,
    other_model,
    reading_features,
    same_model,
    target_service,
)

PROMPT = [5, 17, 99, 17, 5, 42, 99, 17, 5]
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=0.8, seed=3),
    "penalties": SamplingParams(temperature=0.5, frequency_penalty=0.8, no_repeat_ngram_size=2, seed=5),
}
RULES = (
    model_pb2.ACCEPTANCE_RULE_COUPLED,
    model_pb2.ACCEPTANCE_RULE_REJECTION,
    model_pb2.ACCEPTANCE_RULE_BLOCK,
)


def asked(params: SamplingParams, rule: model_pb2.AcceptanceRule.ValueType) -> generation_pb2.GenerateRequest:
    sampling = params.to_proto()
    sampling.ignore_eos = True
    return generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=PROMPT),
        sampling=sampling,
        max_new_tokens=20,
        num_draft_tokens=3,
        acceptance_rule=rule,
    )


LOADS: dict[str, Callable[[Path], Drafter]] = {
    "same": lambda directory: same_model(),
    "other": lambda directory: other_model(),
    "combined": lambda directory: combined(),
    "features": reading_features,
    "combined features": lambda directory: combined_drafter(reading_features(directory), DraftSettings(suffix_min=1)),
}


@pytest.mark.parametrize("name", LOADS)
async def test_the_text_is_the_same_by_every_rule(name: str, tmp_path: Path) -> None:
    outcomes: dict[str, Counter[int]] = {}
    texts: dict[str, list[list[int]]] = {}
    num_candidates: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(hosted(target_service()))
        draft = await stack.enter_async_context(hosted(draft_service(lambda: LOADS[name](tmp_path))))
        for pipeline in ("off", "ahead", "candidates", "auto"):
            run = await stack.enter_async_context(orchestrator(target.address, draft.address, pipeline=pipeline))
            client = GenerationClient(run.host.address, timeout_seconds=120)
            client = await stack.enter_async_context(client)
            results = [await client.collect(asked(params, rule)) for params in PARAMS.values() for rule in RULES]
            texts[pipeline] = [list(result.token_ids) for result in results]
            outcomes[pipeline] = Counter(report.draft_ahead for result in results for report in result.rounds)
            num_candidates[pipeline] = sum(report.is_candidate for result in results for report in result.rounds)
    assert texts["ahead"] == texts["off"]
    assert texts["candidates"] == texts["off"]
    assert texts["auto"] == texts["off"]
    assert set(outcomes["off"]) == {draft_pb2.AHEAD_OUTCOME_UNSPECIFIED}
    assert num_candidates["off"] == num_candidates["ahead"] == 0
    # How much of it is there in time depends on the machine; that there is some does not.
    assert outcomes["ahead"][draft_pb2.AHEAD_OUTCOME_HIT] + outcomes["ahead"][draft_pb2.AHEAD_OUTCOME_MISS] > 0

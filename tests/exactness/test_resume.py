"""A client goes on at another orchestrator: with real services and tiny models, the rest is what would have come."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from specdec.client import GenerationClient, GenerationResult
from specdec.sampling.params import SamplingParams
from specdec.v1 import generation_pb2, model_pb2
from tests.exactness.test_coupled_text import NUM_TOKENS, REQUESTS, generate_request
from tests.exactness.whole_system import combined, draft_service, hosted, orchestrator, target_service

TEXT_BYTES = tuple(range(28, 258))
"""Ids of bytes that are no letters: parts of characters among them."""
_AT_ONCE = 60
MORE = {
    "characters in parts": SamplingParams(temperature=1.5, allowed_token_ids=TEXT_BYTES, seed=11),
    "log-probabilities": SamplingParams(seed=12, num_logprobs=2),
    "a stop token in the middle": SamplingParams(allowed_token_ids=(5, 17, 42, 99), stop_token_ids=(5,), seed=13),
}


def asked(params: SamplingParams, num_draft_tokens: int, num_completions: int = 1) -> generation_pb2.GenerateRequest:
    request = generate_request(params, num_draft_tokens)
    request.num_completions = num_completions
    return request


async def test_the_rest_of_any_cut_is_the_same() -> None:
    """Every kind of request, cut behind each of its tokens; the first orchestrator has no drafts, the second has."""
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(hosted(target_service()))
        draft = await stack.enter_async_context(hosted(draft_service(combined)))
        clients = []
        for address in ("", draft.address):
            run = await stack.enter_async_context(orchestrator(target.address, address))
            client = GenerationClient(run.host.address, timeout_seconds=120)
            clients.append(await stack.enter_async_context(client))
        requests = {name: asked(params, 0) for name, params in (REQUESTS | MORE).items()}
        # A stop string that the text contains, and beginnings of which come before.
        whole = {name: await clients[0].collect(request) for name, request in requests.items()}
        tail = whole["characters in parts"].text[-4:]
        requests["a stop string"] = asked(MORE["characters in parts"], 0)
        requests["a stop string"].stop_strings.extend([tail, tail[:2] + "never"])
        whole["a stop string"] = await clients[0].collect(requests["a stop string"])
        lengths = {name: await _text_lengths(clients[0], request) for name, request in requests.items()}
        cuts = [(name, cut) for name, result in whole.items() for cut in range(len(result.token_ids) + 1)]
        rests = await _all(clients[1], [_resumed(requests[name], whole[name].token_ids[:cut]) for name, cut in cuts])
    for (name, cut), rest in zip(cuts, rests, strict=True):
        before = whole[name]
        assert before.token_ids[:cut] + rest.token_ids == before.token_ids, (name, cut)
        assert before.text[: sum(lengths[name][:cut])] + rest.text == before.text, (name, cut)
        assert len(rest.logprobs) == (len(rest.token_ids) if name == "log-probabilities" else 0)
        assert [entry.token_id for entry in rest.logprobs] == [entry.token_id for entry in before.logprobs[cut:]]
        assert rest.finished is not None
        assert before.finished is not None
        assert rest.finished.finish_reason == before.finished.finish_reason
        assert rest.finished.stop_string == before.finished.stop_string
        assert rest.finished.usage.num_generated_tokens == len(before.token_ids)
    assert whole["a stop string"].finished is not None
    assert whole["a stop string"].finished.stop_string
    assert len(whole["a stop token in the middle"].token_ids) < NUM_TOKENS
    # The drafts of the second one mattered.
    assert sum(report.num_accepted_tokens for rest in rests for report in rest.rounds) > 100


async def test_several_completions_go_on_together() -> None:
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(hosted(target_service()))
        run = await stack.enter_async_context(orchestrator(target.address))
        client = await stack.enter_async_context(GenerationClient(run.host.address, timeout_seconds=120))
        request = asked(SamplingParams(seed=21, frequency_penalty=0.5, repetition_penalty=1.2), 0, 3)
        whole = await client.collect_all(request)
        again = generation_pb2.GenerateRequest()
        again.CopyFrom(request)
        for result, cut in zip(whole, (4, 0, NUM_TOKENS), strict=True):
            again.resume_token_ids.append(generation_pb2.ReceivedTokens(ids=result.token_ids[:cut]))
        rests = await client.collect_all(again)
    assert len({tuple(result.token_ids) for result in whole}) == 3
    for result, rest, cut in zip(whole, rests, (4, 0, NUM_TOKENS), strict=True):
        assert result.token_ids[:cut] + rest.token_ids == result.token_ids


async def _all(client: GenerationClient, requests: list[generation_pb2.GenerateRequest]) -> list[GenerationResult]:
    """A number of them at a time."""
    results: list[GenerationResult] = []
    for first in range(0, len(requests), _AT_ONCE):
        batch = requests[first : first + _AT_ONCE]
        results += await asyncio.gather(*(client.collect(request) for request in batch))
    return results


async def _text_lengths(client: GenerationClient, request: generation_pb2.GenerateRequest) -> list[int]:
    return [length async for response in client.generate(request) for length in response.delta.text_lengths]


def _resumed(request: generation_pb2.GenerateRequest, token_ids: list[int]) -> generation_pb2.GenerateRequest:
    again = generation_pb2.GenerateRequest()
    again.CopyFrom(request)
    again.num_draft_tokens = 4
    again.acceptance_rule = model_pb2.ACCEPTANCE_RULE_COUPLED
    again.resume_token_ids.append(generation_pb2.ReceivedTokens(ids=token_ids))
    return again

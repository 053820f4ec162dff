"""A generation service without a model: what it does is chosen by the prompt."""

import asyncio
from collections.abc import AsyncIterator

import grpc

from specdec.v1 import draft_pb2, generation_pb2, generation_pb2_grpc, model_pb2, sampling_pb2, target_pb2

TEXTS = ("Hel", "lo wor", "ld", "!")
TOKEN_IDS = ((5,), (6, 7, 8), (9,), (10,))
FULL_TEXT = "".join(TEXTS)
ALL_TOKEN_IDS = [token for ids in TOKEN_IDS for token in ids]
_ACCEPTED = (0, 2, 0, 0)
_DRAFTED = (0, 2, 3, 0)
_TEXT_LENGTHS = ((3,), (2, 2, 2), (2,), (1,))

Context = grpc.aio.ServicerContext[object, object]


class FakeGeneration(generation_pb2_grpc.GenerationServiceServicer):
    """Prompts: "refuse", "cut" (ends without the final message), "hang" (after the first delta), "break" (a failure
    after the first delta); anything else generates `FULL_TEXT`."""

    def __init__(self) -> None:
        self.requests: list[generation_pb2.GenerateRequest] = []
        self.cancelled = asyncio.Event()

    async def Generate(  # noqa: N802
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        self.requests.append(request)
        prompt = request.chat.messages[-1].content if request.HasField("chat") else request.text
        try:
            async for response in self._responses(request, prompt, context):
                yield response
        finally:
            # Wherever the cancel finds it.
            if prompt == "hang":
                self.cancelled.set()

    async def _responses(
        self, request: generation_pb2.GenerateRequest, prompt: str, context: Context
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        if prompt == "refuse":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests; try again later")
        started, *deltas, finished = responses(logprobs=request.sampling.HasField("num_logprobs"))
        yield started
        for delta in deltas:
            yield delta
            if prompt == "hang":
                await asyncio.sleep(60)
            if prompt == "break":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the target service is gone")
        if prompt != "cut":
            yield finished
        for completion in range(1, request.num_completions):
            for response in (*deltas, finished):
                (response.delta if response.HasField("delta") else response.finished).completion = completion
                yield response

    async def GenerateUnary(  # noqa: N802
        self, request: generation_pb2.GenerateUnaryRequest, context: Context
    ) -> generation_pb2.GenerateUnaryResponse:
        completion = generation_pb2.Completion(text=FULL_TEXT, token_ids=ALL_TOKEN_IDS, finished=_finished())
        return generation_pb2.GenerateUnaryResponse(completions=[completion])


def responses(*, logprobs: bool = False) -> list[generation_pb2.GenerateResponse]:
    """The whole stream of a generation: a prefill and three rounds."""
    started = generation_pb2.Started(
        request_id="r1",
        model_id="fake",
        num_prompt_tokens=3,
        seed=2**63 + 1,
        acceptance_rule=model_pb2.ACCEPTANCE_RULE_COUPLED,
    )
    return [
        generation_pb2.GenerateResponse(started=started),
        *(generation_pb2.GenerateResponse(delta=_delta(index, logprobs=logprobs)) for index in range(len(TEXTS))),
        generation_pb2.GenerateResponse(finished=_finished()),
    ]


def _delta(index: int, *, logprobs: bool) -> generation_pb2.Delta:
    return generation_pb2.Delta(
        text=TEXTS[index],
        text_lengths=_TEXT_LENGTHS[index],
        token_ids=TOKEN_IDS[index],
        logprobs=[
            sampling_pb2.TokenLogprobs(token_id=token, logprob=-0.5, top_token_ids=[token, 3], top_logprobs=[-0.5, -2])
            for token in TOKEN_IDS[index]
            if logprobs
        ],
        round=generation_pb2.RoundReport(
            round=index,
            base_length=3 + sum(map(len, TOKEN_IDS[:index])),
            num_draft_tokens=_DRAFTED[index],
            num_accepted_tokens=_ACCEPTED[index],
            next_token_kind=target_pb2.NEXT_TOKEN_KIND_RECOVERED
            if _ACCEPTED[index] < _DRAFTED[index]
            else target_pb2.NEXT_TOKEN_KIND_BONUS,
            wall_microseconds=10_000,
            draft_wait_microseconds=3_000 if _DRAFTED[index] else 0,
            verify_wait_microseconds=6_500,
            draft_source=draft_pb2.DRAFT_SOURCE_SUFFIX if _DRAFTED[index] else draft_pb2.DRAFT_SOURCE_UNSPECIFIED,
            draft=model_pb2.Timings(queue_microseconds=500, compute_microseconds=1_500) if _DRAFTED[index] else None,
            verify=model_pb2.Timings(queue_microseconds=1_000, compute_microseconds=5_000),
        ),
    )


def _finished() -> generation_pb2.Finished:
    return generation_pb2.Finished(
        finish_reason=generation_pb2.FINISH_REASON_LENGTH,
        usage=generation_pb2.Usage(num_prompt_tokens=3, num_generated_tokens=len(ALL_TOKEN_IDS)),
        stats=generation_pb2.RoundStats(
            num_rounds=3,
            num_draft_tokens=5,
            num_accepted_tokens=2,
            acceptance_rate=0.4,
            mean_acceptance_length=1 + 2 / 3,
            ttft_seconds=0.01,
            tokens_per_second=166.7,
        ),
    )

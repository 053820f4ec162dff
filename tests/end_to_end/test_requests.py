"""What clients do wrong, and what they do when they have changed their mind."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from specdec.client import GenerationClient
from specdec.v1 import generation_pb2, sampling_pb2
from tests.end_to_end.conftest import Deployment
from tests.end_to_end.prompts import PROMPTS
from tests.end_to_end.requests import chat_request, generate_all

INVALID = grpc.StatusCode.INVALID_ARGUMENT
OUT_OF_RANGE = grpc.StatusCode.OUT_OF_RANGE


def _text(text: str = "Hello", **fields: object) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(text=text, max_new_tokens=4, **fields)  # type: ignore[arg-type]


def _sampled(**fields: object) -> generation_pb2.GenerateRequest:
    return _text(sampling=sampling_pb2.SamplingParams(**fields))  # type: ignore[arg-type]


def _ids(*ids: int) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(token_ids=generation_pb2.TokenIds(ids=ids), max_new_tokens=4)


@pytest.mark.parametrize(
    ("request_message", "code", "hint"),
    [
        (generation_pb2.GenerateRequest(), INVALID, "input"),
        (_text(""), INVALID, "empty"),
        (_ids(), INVALID, "empty"),
        (generation_pb2.GenerateRequest(chat=generation_pb2.ChatInput()), INVALID, "messages"),
        (_ids(1, 49152), INVALID, "49152"),
        (_ids(*[5] * 8192), OUT_OF_RANGE, "8192"),
        (_text("word " * 9000), OUT_OF_RANGE, "8192"),
        (_sampled(temperature=-1.0), INVALID, "temperature"),
        (_sampled(temperature=float("nan")), INVALID, "temperature"),
        (_sampled(top_p=0.0), INVALID, "top_p"),
        (_sampled(top_p=1.5), INVALID, "top_p"),
        (_sampled(repetition_penalty=0.0), INVALID, "repetition_penalty"),
        (_sampled(banned_token_ids=[60000]), INVALID, "banned_token_ids"),
        (_text(num_draft_tokens=100000), INVALID, "num_draft_tokens"),
        (_text(acceptance_rule=17), INVALID, "acceptance_rule"),
        (_text(stop_strings=[""]), INVALID, "stop_strings"),
        (_text(stop_strings=["x"] * 1000), INVALID, "stop_strings"),
    ],
)
async def test_bad_requests_are_refused_with_what_to_change(
    deployment: Deployment, request_message: generation_pb2.GenerateRequest, code: grpc.StatusCode, hint: str
) -> None:
    async with GenerationClient(deployment.ngram, timeout_seconds=60) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.collect(request_message)
    assert caught.value.code() is code
    assert hint in (caught.value.details() or "")


async def test_cancelled_requests_leave_nothing_behind(deployment: Deployment) -> None:
    receiver = deployment.receiver

    def open_sequences() -> float:
        return receiver.total("specdec.sequences.open")

    await receiver.wait_until(lambda: open_sequences() == 0)
    async with GenerationClient(deployment.same, timeout_seconds=60) as client:
        streams = [
            client.generate(chat_request(prompt, max_new_tokens=500, num_draft_tokens=4)) for prompt in PROMPTS[:4]
        ]
        for stream in streams:
            for _ in range(3):
                await anext(stream)
        await receiver.wait_until(lambda: open_sequences() >= 8, timeout=10)
        for stream in streams:
            await stream.aclose()
        # Gone within a second, and the exporter's interval on top of it.
        await receiver.wait_until(lambda: open_sequences() == 0, timeout=1.5)


async def test_client_that_is_killed_leaves_nothing_behind(deployment: Deployment) -> None:
    task = asyncio.create_task(generate_all(deployment.ngram, [chat_request(PROMPTS[10], max_new_tokens=500)]))
    await deployment.receiver.wait_until(lambda: deployment.receiver.total("specdec.sequences.open") >= 2, timeout=30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await deployment.receiver.wait_until(lambda: deployment.receiver.total("specdec.sequences.open") == 0, timeout=1.5)


async def test_unary_answer_equals_the_stream(deployment: Deployment) -> None:
    request = chat_request(PROMPTS[4], max_new_tokens=32, num_draft_tokens=3)
    streamed = (await generate_all(deployment.ngram, [request]))[0]
    async with GenerationClient(deployment.ngram, timeout_seconds=60) as client:
        answer = await client.generate_unary(request)
    (completion,) = answer.completions
    assert completion.text == streamed.text
    assert list(completion.token_ids) == streamed.token_ids
    assert completion.finished.usage.num_generated_tokens == len(streamed.token_ids)

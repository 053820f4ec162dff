import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest

from specdec.client import GenerationClient, GenerationResult, IncompleteGenerationError
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.specdec.fake_generation import ALL_TOKEN_IDS, FULL_TEXT, FakeGeneration, responses


@pytest.fixture
def generation() -> FakeGeneration:
    return FakeGeneration()


@pytest.fixture
async def address(generation: FakeGeneration) -> AsyncIterator[str]:
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


def ask(prompt: str) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(text=prompt)


async def test_the_responses_come_in_order_and_add_up(address: str) -> None:
    async with GenerationClient(address) as client:
        received = [response async for response in client.generate(ask("hello"))]
        assert [response.WhichOneof("event") for response in received] == ["started", *["delta"] * 4, "finished"]
        result = await client.collect(ask("hello"))
    assert (result.text, result.token_ids) == (FULL_TEXT, ALL_TOKEN_IDS)
    assert result.finished is not None
    assert result.finished.usage.num_generated_tokens == len(ALL_TOKEN_IDS)


async def test_the_unary_answer(address: str) -> None:
    async with GenerationClient(address) as client:
        assert (await client.generate_unary(ask("hello"))).completions[0].text == FULL_TEXT


async def test_a_stream_that_merely_ends_was_aborted(address: str) -> None:
    async with GenerationClient(address) as client:
        with pytest.raises(IncompleteGenerationError, match="without its final message"):
            await client.collect(ask("cut"))


async def test_a_failure_has_code_and_details(address: str) -> None:
    async with GenerationClient(address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await client.collect(ask("refuse"))
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert failure.value.details() == "too many requests; try again later"


async def test_leaving_the_loop_cancels_the_request(address: str, generation: FakeGeneration) -> None:
    async with GenerationClient(address) as client, contextlib.aclosing(client.generate(ask("hang"))) as stream:
        async for response in stream:
            if response.HasField("delta"):
                break
    await asyncio.wait_for(generation.cancelled.wait(), 10)


async def test_cancelling_the_task_cancels_the_request(address: str, generation: FakeGeneration) -> None:
    async with GenerationClient(address) as client:
        task = asyncio.create_task(client.collect(ask("hang")))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.wait_for(generation.cancelled.wait(), 10)


async def test_a_call_has_a_deadline(address: str) -> None:
    async with GenerationClient(address, timeout_seconds=0.3) as client:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await client.collect(ask("hang"))
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_result_as_json_values() -> None:
    result = GenerationResult()
    for response in responses():
        result.add(response)
    values = result.to_dict()
    assert values["model_id"] == "fake"
    assert values["acceptance_rule"] == "coupled"
    assert values["finish_reason"] == "length"
    assert values["stop_string"] is None
    assert values["stop_token_id"] is None
    assert "logprobs" not in values
    rounds = values["rounds"]
    assert isinstance(rounds, list)
    assert [report["draft_source"] for report in rounds] == [None, "suffix", "suffix", None]


def test_what_has_not_come_is_null() -> None:
    values = GenerationResult().to_dict()
    assert (values["text"], values["token_ids"], values["rounds"]) == ("", [], [])
    assert {values[name] for name in ("finish_reason", "usage", "stats", "seed", "stop_token_id")} == {None}


def test_a_stop_token_of_id_0_is_told_from_none() -> None:
    result = GenerationResult()
    finished = generation_pb2.Finished(finish_reason=generation_pb2.FINISH_REASON_STOP, stop_token_id=0)
    result.add(generation_pb2.GenerateResponse(finished=finished))
    assert result.to_dict()["stop_token_id"] == 0

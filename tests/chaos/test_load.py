"""The clients of the chaos suite notice what they are there to notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from specdec.client import GenerationResult
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.chaos.comparing import Difference
from tests.chaos.load import Load
from tests.orchestrator.serving import until
from tests.specdec.fake_generation import ALL_TOKEN_IDS, FULL_TEXT, FakeGeneration


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


def load(address: str, *prompts: str, token_ids: list[int] = ALL_TOKEN_IDS, text: str = FULL_TEXT) -> Load:
    requests = [generation_pb2.GenerateRequest(text=prompt) for prompt in prompts]
    expected = [[GenerationResult(text=text, token_ids=list(token_ids))] for _ in prompts]
    return Load([address], requests, expected, num_clients=2)


async def test_every_request_is_sent_and_compared(address: str) -> None:
    clients = load(address, "a", "b", "c")
    await clients.run(lambda: True)
    assert sorted(stream.number for stream in clients.streams) == [0, 1, 2]
    assert all(stream.is_over and not stream.failure and not stream.difference for stream in clients.streams)
    assert clients.num_deltas == 12
    assert all(len(stream.arrivals) == 4 and stream.longest_gap_seconds >= 0 for stream in clients.streams)


async def test_they_go_on_until_it_is_enough(address: str) -> None:
    clients = load(address, "a", "b")
    await clients.run(lambda: clients.num_deltas > 30)
    assert len(clients.streams) >= 8
    assert {stream.number for stream in clients.streams} == {0, 1}


@pytest.mark.parametrize(
    ("token_ids", "text", "difference"),
    [
        (ALL_TOKEN_IDS[:-1], FULL_TEXT, Difference(num_changed=1)),
        ([*ALL_TOKEN_IDS, 11], FULL_TEXT, Difference(num_lost=1)),
        (ALL_TOKEN_IDS, FULL_TEXT + "!", Difference(num_wrong_characters=1)),
    ],
)
async def test_what_is_not_as_undisturbed_is_noticed(
    address: str, token_ids: list[int], text: str, difference: Difference
) -> None:
    clients = load(address, "a", token_ids=token_ids, text=text)
    await clients.run(lambda: True)
    assert [stream.difference for stream in clients.streams] == [difference]


async def test_failures_are_noticed(address: str) -> None:
    clients = load(address, "refuse", "break", "cut")
    await clients.run(lambda: True)
    failures = sorted(stream.failure for stream in clients.streams)
    assert failures == [
        "RESOURCE_EXHAUSTED: too many requests; try again later",
        "UNAVAILABLE: the target service is gone",
        "the stream ended without its final message; the text is incomplete",
    ]


async def test_a_request_that_is_broken_off_is_sent_again(address: str, generation: FakeGeneration) -> None:
    clients = load(address, "hang")
    running = asyncio.create_task(clients.run(lambda: True))
    await until(lambda: clients.num_deltas == 1)
    assert await clients.cancel_one(7) == 0
    await asyncio.wait_for(generation.cancelled.wait(), 10)
    await until(lambda: clients.num_deltas == 2)
    assert [stream.is_cancelled for stream in clients.streams] == [True, False]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

"""A client of several orchestrators that are lost in the middle of requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from specdec.client import ChangedModelError, GenerationClient, GenerationResult, IncompleteGenerationError
from specdec.v1 import generation_pb2, generation_pb2_grpc, model_pb2
from tests.specdec.fake_generation import ALL_TOKEN_IDS, FULL_TEXT, TOKEN_IDS, responses

Context = grpc.aio.ServicerContext[object, object]
NOWHERE = "127.0.0.1:1"


class Losable(generation_pb2_grpc.GenerationServiceServicer):
    """Goes on behind the ids that it is told, and is lost after some deltas; `lose` says how."""

    def __init__(self, num_deltas: int = 99, lose: str = "UNAVAILABLE") -> None:
        self.requests: list[generation_pb2.GenerateRequest] = []
        self.num_deltas = num_deltas
        self.lose = lose
        self.change: Callable[[generation_pb2.GenerateResponse], None] = lambda _: None

    async def Generate(  # noqa: N802
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        self.requests.append(request)
        started, *deltas, finished = responses()
        self.change(started)
        yield started
        resumed = list(request.resume_token_ids[0].ids) if request.resume_token_ids else []
        num_sent, num_known = 0, 0
        for index, delta in enumerate(deltas):
            num_known += len(TOKEN_IDS[index])
            if num_known <= len(resumed):
                assert resumed[num_known - len(TOKEN_IDS[index]) : num_known] == list(TOKEN_IDS[index])
                continue
            if num_sent == self.num_deltas:
                break
            num_sent += 1
            delta.delta.round.round = num_sent - 1
            yield delta
        else:
            yield finished
            return
        if self.lose == "end":
            return
        await context.abort(getattr(grpc.StatusCode, self.lose), "lost")

    async def GenerateUnary(  # noqa: N802
        self, request: generation_pb2.GenerateUnaryRequest, context: Context
    ) -> generation_pb2.GenerateUnaryResponse:
        self.requests.append(request.request)
        if self.num_deltas < 4:
            await context.abort(getattr(grpc.StatusCode, self.lose), "lost")
        return generation_pb2.GenerateUnaryResponse(completions=[generation_pb2.Completion(text=FULL_TEXT)])


@asynccontextmanager
async def served(*services: Losable) -> AsyncIterator[list[str]]:
    servers = []
    addresses = []
    for service in services:
        server = grpc.aio.server()
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(service, server)
        addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    yield addresses
    for server in servers:
        await server.stop(None)


ASKED = generation_pb2.GenerateRequest(text="hello")


@pytest.mark.parametrize("lose", ["UNAVAILABLE", "CANCELLED", "end"])
@pytest.mark.parametrize("num_deltas", range(4))
async def test_the_caller_sees_one_stream(num_deltas: int, lose: str) -> None:
    async with (
        served(Losable(num_deltas, lose), Losable()) as addresses,
        GenerationClient(",".join(addresses)) as client,
    ):
        received = [response async for response in client.generate(ASKED)]
    assert [response.WhichOneof("event") for response in received] == ["started", *["delta"] * 4, "finished"]
    assert [response.delta.round.round for response in received[1:-1]] == [0, 1, 2, 3]
    result = GenerationResult()
    for response in received:
        result.add(response)
    assert (result.text, result.token_ids) == (FULL_TEXT, ALL_TOKEN_IDS)


async def test_the_second_one_is_told_ids_seed_and_rule() -> None:
    second = Losable()
    async with served(Losable(2), second) as addresses, GenerationClient(addresses) as client:
        await client.collect(ASKED)
    [request] = second.requests
    assert [list(entry.ids) for entry in request.resume_token_ids] == [[*TOKEN_IDS[0], *TOKEN_IDS[1]]]
    assert request.sampling.seed == 2**63 + 1
    assert request.acceptance_rule == model_pb2.ACCEPTANCE_RULE_COUPLED


async def test_both_may_be_lost_again_and_again() -> None:
    """Each call brings one delta."""
    async with served(Losable(1), Losable(1)) as addresses, GenerationClient(addresses, max_failures=1) as client:
        assert (await client.collect(ASKED)).text == FULL_TEXT


async def test_an_address_where_nobody_is_costs_nothing_but_a_try() -> None:
    async with served(Losable()) as addresses, GenerationClient([NOWHERE, *addresses]) as client:
        for _ in range(3):
            assert (await client.collect(ASKED)).text == FULL_TEXT


async def test_one_address_alone_is_not_tried_again_unless_asked_to() -> None:
    losable = Losable(2)
    async with served(losable) as addresses:
        async with GenerationClient(addresses[0]) as client:
            with pytest.raises(grpc.aio.AioRpcError):
                await client.collect(ASKED)
        assert len(losable.requests) == 1
        async with GenerationClient(addresses[0], max_failures=2) as client:
            assert (await client.collect(ASKED)).text == FULL_TEXT


@pytest.mark.parametrize("lose", ["INVALID_ARGUMENT", "INTERNAL", "RESOURCE_EXHAUSTED"])
async def test_other_failures_are_told_at_once(lose: str) -> None:
    second = Losable()
    async with served(Losable(1, lose), second) as addresses, GenerationClient(addresses) as client:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await client.collect(ASKED)
    assert failure.value.code() is getattr(grpc.StatusCode, lose)
    assert not second.requests


async def test_started_alone_is_no_progress() -> None:
    """Else a request would be tried for ever where no target is."""
    services = Losable(0), Losable(0)
    async with served(*services) as addresses, GenerationClient(addresses, max_failures=3) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await asyncio.wait_for(client.collect(ASKED), 20)
    assert sum(len(service.requests) for service in services) == 4


async def test_by_other_rules_a_text_is_not_gone_on_with() -> None:
    def reject(response: generation_pb2.GenerateResponse) -> None:
        response.started.acceptance_rule = model_pb2.ACCEPTANCE_RULE_REJECTION

    second = Losable()
    for first, is_lost in ((Losable(0, "end"), False), (Losable(1, "end"), True)):
        first.change = reject
        async with served(first, second) as addresses, GenerationClient(addresses) as client:
            if is_lost:
                with pytest.raises(IncompleteGenerationError):
                    await client.collect(ASKED)
            else:
                assert (await client.collect(ASKED)).text == FULL_TEXT
    assert len(second.requests) == 1


async def test_another_model_is_noticed() -> None:
    def rename(response: generation_pb2.GenerateResponse) -> None:
        response.started.model_id = "other"

    second = Losable()
    second.change = rename
    async with served(Losable(1), second) as addresses, GenerationClient(addresses) as client:
        with pytest.raises(ChangedModelError, match="began with fake"):
            await client.collect(ASKED)


async def test_requests_are_spread_over_the_addresses() -> None:
    services = Losable(), Losable()
    async with served(*services) as addresses, GenerationClient(addresses) as client:
        await asyncio.gather(*(client.collect(ASKED) for _ in range(6)))
    assert [len(service.requests) for service in services] == [3, 3]


async def test_no_address_is_an_error() -> None:
    with pytest.raises(ValueError, match="no address"):
        GenerationClient(" , ")


async def test_unary_requests_are_sent_elsewhere_too() -> None:
    async with served(Losable(1), Losable()) as addresses, GenerationClient(addresses) as client:
        assert (await client.generate_unary(ASKED)).completions[0].text == FULL_TEXT
    async with served(Losable(1, "INVALID_ARGUMENT"), Losable()) as addresses, GenerationClient(addresses) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await client.generate_unary(ASKED)

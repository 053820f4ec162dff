from collections.abc import AsyncIterator

import grpc
import pytest

from benchmarks.measuring.closed_loop import ClosedLoop
from specdec.client import GenerationClient, IncompleteGenerationError
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.specdec.fake_generation import ALL_TOKEN_IDS, FakeGeneration

PROMPTS = ["one", "two", "three"]


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(FakeGeneration(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.fixture
async def client(address: str) -> AsyncIterator[GenerationClient]:
    async with GenerationClient(address) as client:
        yield client


def loop_of(client: GenerationClient, prompts: list[str]) -> ClosedLoop:
    def make_request(prompt: int, num_draft_tokens: int | None) -> generation_pb2.GenerateRequest:
        return generation_pb2.GenerateRequest(text=prompts[prompt], num_draft_tokens=num_draft_tokens)

    return ClosedLoop(client, make_request, len(prompts))


async def test_clients_send_one_request_after_the_other(client: GenerationClient) -> None:
    async with loop_of(client, PROMPTS).load(2, 4) as load:
        await load.reach_all()
        while sum(record.finished is not None for record in load.records) < 6:
            await load.go_on(0.01)
    assert [record.prompt for record in load.records[:6]] == [0, 1, 2, 0, 1, 2]
    unfinished = [record for record in load.records if record.finished is None]
    assert len(unfinished) <= 2, "each client has one request at a time"
    first = load.records[0]
    assert first.token_ids == ALL_TOKEN_IDS
    assert [delta[1:] for delta in first.deltas] == [(1, 0, 0, 0), (3, 1, 2, 2), (1, 2, 3, 0), (1, 3, 0, 0)]
    assert first.ttft_seconds is not None
    assert first.tpot_seconds is not None
    assert first.finished is not None
    assert 0 < first.ttft_seconds <= first.finished - first.sent
    assert first.tpot_seconds == pytest.approx((first.deltas[-1].arrived - first.deltas[0].arrived) / 5)
    assert first.num_prompt_tokens == 3


async def test_a_load_ends_with_its_block(client: GenerationClient) -> None:
    async with loop_of(client, ["hang"]).load(3, 0) as load:
        await load.reach_all()
        await load.go_on(0.05)
    assert [(record.finished, record.token_ids) for record in load.records] == [(None, [5])] * 3
    assert load.records[0].tpot_seconds is None


async def test_unary_calls_tell_only_their_end(client: GenerationClient) -> None:
    async with loop_of(client, PROMPTS).load(1, None, streams=False) as load:
        while not any(record.finished for record in load.records):
            await load.go_on(0.01)
    assert load.records[0].token_ids == ALL_TOKEN_IDS
    assert (load.records[0].deltas, load.records[0].ttft_seconds) == ([], None)


@pytest.mark.parametrize(("prompt", "error"), [("refuse", grpc.aio.AioRpcError), ("cut", IncompleteGenerationError)])
async def test_a_failed_request_fails_the_load_at_once(
    client: GenerationClient, prompt: str, error: type[Exception]
) -> None:
    async with loop_of(client, [prompt]).load(2, 0) as load:
        with pytest.raises(error):
            await load.go_on(60)

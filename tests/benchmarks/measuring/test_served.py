from collections.abc import AsyncIterator

import grpc
import pytest

from benchmarks.measuring.served import measure_served
from specdec.client import GenerationClient
from specdec.v1 import generation_pb2, generation_pb2_grpc, sampling_pb2
from tests.specdec.fake_generation import ALL_TOKEN_IDS, FakeGeneration


@pytest.fixture
async def server() -> AsyncIterator[tuple[FakeGeneration, str]]:
    generation = FakeGeneration()
    grpc_server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    yield generation, f"127.0.0.1:{port}"
    await grpc_server.stop(None)


async def test_a_generation_is_measured_from_its_first_tokens(server: tuple[FakeGeneration, str]) -> None:
    generation, address = server
    async with GenerationClient(address) as client:
        served = await measure_served(client, [1, 2, 3], max_new_tokens=6, temperature=0.5, seed=4, num_draft_tokens=2)
    assert served.measurement.token_ids == tuple(ALL_TOKEN_IDS)
    assert served.measurement.num_first_tokens == 1
    assert served.measurement.num_decoded_tokens == 5
    assert served.measurement.first_seconds > 0
    assert served.measurement.decode_seconds > 0
    assert served.stats.num_accepted_tokens == 2
    # Rounds of 10 ms with 5 ms of verification, and 1.5 ms of drafting where there was a draft; the prefill is none.
    assert served.round_overhead_seconds == pytest.approx((0.0035, 0.0035, 0.005))
    assert generation.requests == [
        generation_pb2.GenerateRequest(
            token_ids=generation_pb2.TokenIds(ids=[1, 2, 3]),
            sampling=sampling_pb2.SamplingParams(temperature=0.5, seed=4),
            max_new_tokens=6,
            num_draft_tokens=2,
        )
    ]

"""What the relay is for: gRPC between services, over a network that delays and breaks."""

import time
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from benchmarks.links.conditions import LinkConditions
from benchmarks.links.relay_process import RelayProcess
from specdec.cli.service_group import is_serving
from specdec.serving.channel import open_channel


@pytest.fixture
async def served() -> AsyncIterator[str]:
    """Address of a server that says SERVING."""
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def check(channel: grpc.aio.Channel) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
    return time.perf_counter() - began


async def test_a_call_takes_one_round_trip_longer(served: str) -> None:
    async with (
        RelayProcess(served, LinkConditions(rtt_seconds=0.1)) as relay,
        open_channel(relay.address, max_message_bytes=1000) as channel,
    ):
        await check(channel)
        seconds = min([await check(channel) for _ in range(5)])
    assert 0.1 <= seconds < 0.15


async def test_a_channel_outlives_a_cut_a_refusal_and_a_freeze(served: str) -> None:
    async with RelayProcess(served) as relay, open_channel(relay.address, max_message_bytes=1000) as channel:
        assert await is_serving(channel, timeout_seconds=10)
        await relay.cut()
        await relay.refuse()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(channel)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        await relay.accept()
        await channel.channel_ready()
        await check(channel)
        await relay.freeze()
        assert not await is_serving(channel, timeout_seconds=0.3)
        await relay.thaw()
        await check(channel)
        assert (await relay.counts()).num_connections >= 2

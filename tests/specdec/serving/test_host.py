import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from specdec.errors import UnavailableError
from specdec.serving.binding import BindError
from specdec.serving.channel import open_channel
from specdec.serving.health import LIVENESS_NAME
from specdec.serving.host import ServiceHost
from specdec.serving.server_security import PLAINTEXT, ServerSecurity
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.specdec.serving.toy_process import rest_of
from tests.specdec.serving.toy_service import FULL_NAME, MAX_MESSAGE_BYTES, ToyService

pytestmark = pytest.mark.timeout(30)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def host_of(
    service: ToyService, port: int = 0, drain_seconds: float = 5.0, security: ServerSecurity = PLAINTEXT
) -> ServiceHost:
    return ServiceHost(service, host="127.0.0.1", port=port, drain_seconds=drain_seconds, security=security)


@asynccontextmanager
async def channel_to(host: ServiceHost, max_message_bytes: int = MAX_MESSAGE_BYTES) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(host.address, max_message_bytes=max_message_bytes) as channel:
        yield channel


async def health_of(channel: grpc.aio.Channel, name: str = "") -> int:
    response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
    return int(response.status)


async def test_health_is_not_serving_until_the_start_is_done() -> None:
    host = host_of(ToyService(start_seconds=0.3))
    await host.listen()
    try:
        async with channel_to(host) as channel:
            starting = asyncio.create_task(host.start())
            assert [await health_of(channel, name) for name in ("", FULL_NAME)] == [NOT_SERVING, NOT_SERVING]
            assert await health_of(channel, LIVENESS_NAME) == SERVING
            await starting
            assert [await health_of(channel, name) for name in ("", FULL_NAME)] == [SERVING, SERVING]
    finally:
        await host.stop()


async def test_health_of_an_unknown_name_is_not_found() -> None:
    async with host_of(ToyService()) as host, channel_to(host) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health_of(channel, "specdec.v1.Nothing")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_sees_every_change_that_lasts_and_does_not_hold_up_the_end() -> None:
    host = host_of(ToyService())
    await host.listen()
    async with channel_to(host) as channel:
        seen = []
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
        seen.append((await watch.read()).status)
        await host.start()
        seen.append((await watch.read()).status)
        host.health.set_serving(False)
        seen.append((await watch.read()).status)
        host.health.set_serving(True)
        seen.append((await watch.read()).status)
        began = asyncio.get_running_loop().time()
        await host.stop()
        seen.append((await watch.read()).status)
    assert seen == [NOT_SERVING, SERVING, NOT_SERVING, SERVING, NOT_SERVING]
    assert asyncio.get_running_loop().time() - began < 3


async def test_an_idle_service_stops_without_complaint(caplog: pytest.LogCaptureFixture) -> None:
    async with host_of(ToyService(), drain_seconds=0) as host:
        pass
    host.health.set_serving(True)
    assert not host.health.is_serving
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_reflection_is_off_unless_asked_for() -> None:
    async with host_of(ToyService()) as host, channel_to(host) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=5)
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_lists_the_service() -> None:
    async with host_of(ToyService(), security=ServerSecurity(has_reflection=True)) as host, channel_to(host) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=FULL_NAME))
        described = (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()
    assert listed == {FULL_NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert any(b"generation.proto" in file for file in described)


async def test_a_port_in_use_is_named_and_never_shared() -> None:
    async with host_of(ToyService()) as host:
        second = ToyService()
        with pytest.raises(BindError, match=rf"cannot listen on 127.0.0.1:{host.port}: address already in use"):
            async with host_of(second, port=host.port):
                pass
        assert second.steps == ["close"]


async def test_a_port_left_by_a_stopped_host_is_free_at_once() -> None:
    async with host_of(ToyService()) as host, channel_to(host) as channel:
        await health_of(channel)
    async with host_of(ToyService(), port=host.port) as again, channel_to(again) as channel:
        assert await health_of(channel) == SERVING


@pytest.mark.parametrize(
    ("address", "reason"), [("192.0.2.1", "cannot assign"), ("nothing.invalid", "not known|no address|failure in name")]
)
async def test_a_host_that_is_not_of_this_machine_is_named(address: str, reason: str) -> None:
    host = ServiceHost(ToyService(), host=address, port=0, drain_seconds=0)
    with pytest.raises(BindError, match=rf"cannot listen on {address}:0: .*({reason})"):
        await host.listen()
    await host.stop()


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
async def test_an_ipv6_address_gets_its_brackets() -> None:
    host = ServiceHost(ToyService(), host="::1", port=0, drain_seconds=0)
    async with host, channel_to(host) as channel:
        assert host.address == f"[::1]:{host.port}"
        assert await health_of(channel) == SERVING


async def test_a_message_over_the_limit_is_refused_in_both_directions() -> None:
    too_long = generation_pb2.GenerateUnaryRequest(
        request=generation_pb2.GenerateRequest(text="x" * (MAX_MESSAGE_BYTES + 1))
    )
    async with host_of(ToyService()) as host:
        async with channel_to(host, 2 * MAX_MESSAGE_BYTES) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as by_server:
                await generation_pb2_grpc.GenerationServiceStub(channel).GenerateUnary(too_long, timeout=5)
        async with channel_to(host) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as by_client:
                await generation_pb2_grpc.GenerationServiceStub(channel).GenerateUnary(too_long, timeout=5)
    for refused in (by_server.value, by_client.value):
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(MAX_MESSAGE_BYTES) in (refused.details() or "")


async def test_stop_lets_a_running_stream_end_and_refuses_a_new_one() -> None:
    service = ToyService()
    host = host_of(service)
    await host.start()
    async with channel_to(host) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        running = stub.Generate(generation_pb2.GenerateRequest(max_new_tokens=20))
        await running.read()
        stopping = asyncio.create_task(host.stop())
        await asyncio.sleep(0.1)
        assert await health_of(channel) == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Generate(generation_pb2.GenerateRequest(max_new_tokens=1)).read()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        events = await rest_of(running)
        await stopping
    assert events[-1].HasField("finished")
    assert service.steps == ["start", "drain", "close"]


async def test_stop_cuts_a_stream_that_does_not_end() -> None:
    service = ToyService()
    host = host_of(service, drain_seconds=0.3)
    await host.start()
    async with channel_to(host) as channel:
        running = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
            generation_pb2.GenerateRequest(max_new_tokens=1_000_000)
        )
        await running.read()
        began = asyncio.get_running_loop().time()
        await host.stop()
        assert asyncio.get_running_loop().time() - began < 3
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await rest_of(running)
    assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
    assert service.steps == ["start", "drain", "close"]


async def test_a_start_that_fails_closes_the_service() -> None:
    service = ToyService(start_error=UnavailableError("the target is not there"))
    with pytest.raises(UnavailableError, match="the target is not there"):
        async with host_of(service):
            pass
    assert service.steps == ["start", "close"]


class StubbornService(ToyService):
    """Drains and closes badly."""

    async def drain(self) -> None:
        raise RuntimeError("drain is broken")

    async def close(self) -> None:
        self.steps.append("close")
        raise RuntimeError("close is broken")


async def test_a_broken_drain_does_not_keep_the_host_from_stopping(caplog: pytest.LogCaptureFixture) -> None:
    service = StubbornService()
    async with host_of(service):
        pass
    assert service.steps == ["start", "close"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError, RuntimeError]


class DeafService(ToyService):
    """Its drain and its close do not end, whatever they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def drain(self) -> None:
        await self._be_deaf("drain")

    async def close(self) -> None:
        await self._be_deaf("close")

    async def _be_deaf(self, step: str) -> None:
        self.steps.append(step)
        while not self.may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.may_end.wait()


async def test_steps_that_heed_no_cancel_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.serving.host.CLOSE_SECONDS", 0.2)
    service = DeafService()
    host = host_of(service, drain_seconds=0.2)
    await host.start()
    began = asyncio.get_running_loop().time()
    await host.stop()
    assert asyncio.get_running_loop().time() - began < 3
    assert service.steps == ["start", "drain", "close"]
    service.may_end.set()
    await asyncio.sleep(0)

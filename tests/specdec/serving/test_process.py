import asyncio
import json
import signal
import time
import urllib.request

import grpc
import pytest

from specdec.serving.channel import open_channel
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.otlp_receiver import OtlpReceiver
from tests.specdec.serving.toy_process import rest_of, toy_process
from tests.specdec.serving.toy_service import MAX_MESSAGE_BYTES

pytestmark = pytest.mark.timeout(60)


def request_of(num_tokens: int) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(max_new_tokens=num_tokens)


async def test_sigterm_lets_the_running_stream_end_and_refuses_new_ones() -> None:
    async with toy_process() as toy, open_channel(await toy.address(), max_message_bytes=MAX_MESSAGE_BYTES) as channel:
        await toy.wait_for_line("ready")
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        running = stub.Generate(request_of(20))
        await running.read()
        toy.signal(signal.SIGTERM)
        await toy.wait_for_line("stopping")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Generate(request_of(1)).read()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "another replica" in (refused.value.details() or "")
        assert (await rest_of(running))[-1].HasField("finished")
        assert await toy.status() == 0
        assert toy.lines[-1].endswith("toy stopped")


async def test_sigterm_cuts_a_stream_that_never_ends() -> None:
    async with (
        toy_process("--drain-seconds", "0.5") as toy,
        open_channel(await toy.address(), max_message_bytes=MAX_MESSAGE_BYTES) as channel,
    ):
        running = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request_of(1_000_000))
        await running.read()
        began = time.monotonic()
        toy.signal(signal.SIGTERM)
        assert await toy.status() == 0
        assert time.monotonic() - began < 5
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await rest_of(running)
        assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
        assert any("running work did not end in time and is cut" in line for line in toy.lines)
        assert not any("Traceback" in line for line in toy.lines)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_kills_at_once(second: signal.Signals) -> None:
    async with toy_process() as toy, open_channel(await toy.address(), max_message_bytes=MAX_MESSAGE_BYTES) as channel:
        running = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request_of(1_000_000))
        await running.read()
        toy.signal(signal.SIGINT)
        await toy.wait_for_line("stopping")
        began = time.monotonic()
        toy.signal(second)
        assert await toy.status() == -second
        assert time.monotonic() - began < 2


async def test_what_is_there_after_the_start_is_not_searched_for_garbage() -> None:
    async with toy_process("--log-level", "debug") as toy:
        found = await toy.wait_for_line(r"the garbage collector passes over (\d+) objects")
    assert int(found.group(1)) > 10_000


async def test_sigterm_during_the_start_ends_the_process() -> None:
    async with toy_process(variables={"TOY_START_SECONDS": "60"}) as toy:
        await toy.address()
        toy.signal(signal.SIGTERM)
        assert await toy.status() == 0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("refusal", "cannot start: the model is not for toys; choose another"),
        ("expected", "cannot start: no such toy; choose another"),
    ],
)
async def test_a_start_that_is_refused_is_one_line_and_status_1(error: str, message: str) -> None:
    async with toy_process(variables={"TOY_START_ERROR": error}) as toy:
        assert await toy.status() == 1
    assert [line for line in toy.lines if " error " in line] == [toy.lines[-1]]
    assert toy.lines[-1].endswith(message)
    assert not any("Traceback" in line for line in toy.lines)


async def test_a_bug_in_the_start_keeps_its_traceback() -> None:
    async with toy_process("--log-format", "json", variables={"TOY_START_ERROR": "bug"}) as toy:
        assert await toy.status() == 1
    last = json.loads(toy.lines[-1])
    assert last["level"] == "error"
    assert "Traceback" in last["exception"]
    assert last["exception"].endswith("RuntimeError: unexpected")


async def test_a_port_in_use_is_one_line_and_status_1() -> None:
    async with toy_process() as first:
        port = (await first.address()).rpartition(":")[2]
        async with toy_process("--port", port) as second:
            assert await second.status() == 1
    assert len(second.lines) == 1
    assert second.lines[0].endswith(
        f"cannot start: cannot listen on 127.0.0.1:{port}: address already in use; choose another host or port"
    )


async def test_metrics_are_served_until_the_end() -> None:
    async with toy_process("--metrics-port", "0") as toy:
        address = (await toy.wait_for_line(r"serving metrics on ([\d.:]+)")).group(1)
        url = f"http://{address}/metrics"
        body = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read())
        assert b"python_info" in body
        async with toy_process("--metrics-port", address.rpartition(":")[2]) as second:
            assert await second.status() == 1
        assert second.lines[-1].endswith(
            f"cannot start: cannot serve metrics on {address}: address already in use; choose another --metrics-port"
        )
        toy.signal(signal.SIGTERM)
        assert await toy.status() == 0
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5))


async def test_a_malformed_telemetry_variable_is_named_with_status_2() -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317",
        "OTEL_EXPORTER_OTLP_HEADERS": "a secret",
        "OTEL_BSP_MAX_QUEUE_SIZE": "many",
    }
    async with toy_process(variables=variables) as toy:
        assert await toy.status() == 2
    assert len(toy.lines) == 1
    assert "OTEL_EXPORTER_OTLP_HEADERS" in toy.lines[0]
    assert "OTEL_BSP_MAX_QUEUE_SIZE" in toy.lines[0]
    assert "secret" not in toy.lines[0]


async def test_the_last_spans_reach_the_collector_and_continue_the_client_s_trace() -> None:
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with OtlpReceiver() as receiver:
        variables = {**receiver.environment, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
        async with (
            toy_process(variables=variables) as toy,
            open_channel(await toy.address(), max_message_bytes=MAX_MESSAGE_BYTES) as channel,
        ):
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            finished = stub.Generate(request_of(2), metadata=[("traceparent", f"00-{trace_id}-{span_id}-01")])
            await rest_of(finished)
            cut = stub.Generate(request_of(1_000_000))
            await cut.read()
            cut.cancel()
            toy.signal(signal.SIGTERM)
            assert await toy.status() == 0
        first, second = receiver.spans_named("generate")
        assert receiver.undeclared() == set()
    assert (first.trace_id, first.parent_span_id, first.is_error) == (trace_id, span_id, False)
    assert (second.attributes, second.is_error) == ({"error.type": "cancelled"}, True)
    assert {first.service, second.service} == {"specdec-toy"}


async def test_an_address_that_others_reach_is_warned_of() -> None:
    async with toy_process("--host", "0.0.0.0", "--insecure-bind") as toy:  # noqa: S104
        await toy.wait_for_line(r"warning .*0\.0\.0\.0:\d+.* no encryption, no authentication")


async def test_an_address_that_others_reach_is_refused_in_plaintext() -> None:
    async with toy_process("--host", "0.0.0.0") as toy:  # noqa: S104
        assert await toy.status() == 1
    (line,) = toy.lines
    assert "cannot start: others can reach 0.0.0.0 and there is no encryption and no authentication" in line
    assert "--insecure-bind" in line


async def test_a_thread_that_computes_on_does_not_keep_the_process() -> None:
    async with toy_process(module="tests.specdec.serving.busy_toy") as toy:
        await toy.wait_for_line("ready")
        began = time.monotonic()
        toy.signal(signal.SIGTERM)
        assert await toy.status() == 0
        assert time.monotonic() - began < 10

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any, TypeAlias

import grpc
import pytest
from google.rpc import status_pb2

from specdec import errors
from specdec.logs import is_no_poller_noise
from specdec.serving.refusals import INTERNAL_MESSAGE, STATUS_DETAILS_KEY, RefusalInterceptor
from specdec.telemetry import names, tracing
from tests.recorded_spans import recorded_spans

pytestmark = pytest.mark.timeout(30)

# A request is a google.rpc.Status: its code is what the handler refuses with (0: it answers), its message "bug" a bug.
Request: TypeAlias = status_pb2.Status


def outcome(request: Request) -> Request:
    if request.message == "bug":
        raise RuntimeError("a detail for the log")
    if request.code:
        raise errors.from_status(request)
    return Request(message="answer")


class Shapes:
    """A handler of each shape, each within a span; `closed` is set when one has run its `finally`."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def unary_unary(self, request: Request, context: Any) -> Request:
        with tracing.span(names.GENERATE):
            return outcome(request)

    async def stream_unary(self, requests: AsyncIterator[Request], context: Any) -> Request:
        with tracing.span(names.GENERATE):
            answer = Request()
            async for request in requests:
                answer = outcome(request)
            return answer

    async def unary_stream(self, request: Request, context: Any) -> AsyncIterator[Request]:
        try:
            with tracing.span(names.GENERATE):
                yield outcome(request)
                if request.message == "endless":
                    await asyncio.sleep(60)
        finally:
            self.closed.set()

    async def stream_stream(self, requests: AsyncIterator[Request], context: Any) -> AsyncIterator[Request]:
        try:
            with tracing.span(names.GENERATE):
                async for request in requests:
                    yield outcome(request)
        finally:
            self.closed.set()

    async def unary_stream_writing(self, request: Request, context: Any) -> None:
        with tracing.span(names.GENERATE):
            await context.write(outcome(request))

    async def stream_stream_writing(self, requests: AsyncIterator[Request], context: Any) -> None:
        with tracing.span(names.GENERATE):
            while (request := await context.read()) is not grpc.aio.EOF:
                await context.write(outcome(request))

    async def aborting(self, request: Request, context: Any) -> None:
        await context.abort(grpc.StatusCode.DATA_LOSS, "its own words")


SHAPES = [
    "unary_unary",
    "stream_unary",
    "unary_stream",
    "stream_stream",
    "unary_stream_writing",
    "stream_stream_writing",
]


@asynccontextmanager
async def serving(shapes: Shapes) -> AsyncIterator[Any]:
    handlers = {}
    for shape in [*SHAPES, "aborting"]:
        kind = "unary_unary" if shape == "aborting" else shape.removesuffix("_writing")
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        handlers[shape] = make(
            getattr(shapes, shape),
            request_deserializer=Request.FromString,
            response_serializer=Request.SerializeToString,
        )
    server = grpc.aio.server(interceptors=[RefusalInterceptor()])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("toy", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


def start_call(channel: Any, shape: str, *requests: bytes) -> Any:
    kind = "unary_unary" if shape == "aborting" else shape.removesuffix("_writing")
    method = getattr(channel, kind)(f"/toy/{shape}", response_deserializer=Request.FromString)

    async def sent() -> AsyncIterator[bytes]:
        for request in requests:
            yield request

    return method(sent() if kind.startswith("stream") else requests[0], timeout=10)


async def answers(call: Any) -> list[Request]:
    if hasattr(call, "read"):
        return [response async for response in call]
    return [await call]


@pytest.fixture(params=["tracing on", "tracing off"])
def _tracing(request: pytest.FixtureRequest) -> Iterator[None]:
    with recorded_spans() if request.param == "tracing on" else nullcontext():
        yield


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("_tracing")
async def test_an_answer_passes(shape: str) -> None:
    async with serving(Shapes()) as channel:
        received = await answers(start_call(channel, shape, Request().SerializeToString()))
    assert [response.message for response in received] == ["answer"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "refusal",
    [
        errors.InvalidArgumentError,
        errors.OutOfRangeError,
        errors.FailedPreconditionError,
        errors.ResourceExhaustedError,
        errors.UnavailableError,
        errors.UnimplementedError,
    ],
)
@pytest.mark.usefixtures("_tracing")
async def test_a_refusal_is_its_code_and_its_sentence(shape: str, refusal: type[errors.Refusal]) -> None:
    request = refusal("top_k is 7; it must be 8").to_status().SerializeToString()
    async with serving(Shapes()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await answers(start_call(channel, shape, request))
    assert refused.value.code() is refusal.code
    assert refused.value.details() == "top_k is 7; it must be 8"


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_refusal_that_says_when_to_try_again_has_status_details(shape: str) -> None:
    status = errors.ResourceExhaustedError("it is full", 1.5).to_status()
    async with serving(Shapes()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await answers(start_call(channel, shape, status.SerializeToString()))
    details = dict(refused.value.trailing_metadata())[STATUS_DETAILS_KEY]
    assert status_pb2.Status.FromString(details) == status
    assert errors.from_status(status).retry_seconds == 1.5


def complaints(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Records from warning up that would reach the log."""
    return [record for record in caplog.records if record.levelno >= logging.WARNING and is_no_poller_noise(record)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("_tracing")
async def test_a_bug_is_internal_and_its_details_stay_in_the_log(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Shapes()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await answers(start_call(channel, shape, Request(message="bug").SerializeToString()))
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert refused.value.details() == INTERNAL_MESSAGE
    (record,) = complaints(caplog)
    assert record.getMessage() == f"/toy/{shape} failed"
    assert "a detail for the log" in caplog.text


@pytest.mark.parametrize("shape", SHAPES)
async def test_bytes_that_are_no_message_are_refused(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Shapes()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await answers(start_call(channel, shape, b"\xff\xff\xff"))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not complaints(caplog)


async def test_an_abort_of_the_handler_passes() -> None:
    async with serving(Shapes()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await answers(start_call(channel, "aborting", b""))
    assert refused.value.code() is grpc.StatusCode.DATA_LOSS
    assert refused.value.details() == "its own words"


async def test_a_method_that_is_not_there_is_unimplemented() -> None:
    async with serving(Shapes()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/toy/nothing")(b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("shape", ["unary_stream", "stream_stream"])
async def test_a_client_that_goes_away_ends_the_handler_at_once(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    shapes = Shapes()
    with recorded_spans() as recorded:
        async with serving(shapes) as channel:
            if shape == "stream_stream":
                call = channel.stream_stream("/toy/stream_stream")()
                await call.write(Request().SerializeToString())
            else:
                call = start_call(channel, shape, Request(message="endless").SerializeToString())
            await call.read()
            call.cancel()
            await asyncio.wait_for(shapes.closed.wait(), 5)
        (span,) = recorded.get_finished_spans()
    assert not complaints(caplog)
    assert span.name == "generate"


async def test_a_client_that_goes_away_while_the_handler_writes_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    class Flood(Shapes):
        async def unary_stream(self, request: Request, context: Any) -> AsyncIterator[Request]:
            try:
                while True:
                    yield Request(message="x" * 10_000)
            finally:
                ended.set()

    async with serving(Flood()) as channel:
        for _ in range(10):
            ended.clear()
            call = start_call(channel, "unary_stream", b"")
            await call.read()
            call.cancel()
            await asyncio.wait_for(ended.wait(), 5)
    assert not complaints(caplog)

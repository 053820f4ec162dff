import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode

from specdec.errors import InvalidArgumentError
from specdec.telemetry import names, tracing
from specdec.v1 import model_pb2
from tests.recorded_spans import recorded_spans

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with recorded_spans() as exporter:
        yield exporter


def test_the_parent_is_the_one_given(spans: InMemorySpanExporter) -> None:
    with tracing.span(names.GENERATE) as generate:
        assert not trace.get_current_span().is_recording()
        with tracing.span(names.ROUND, parent=generate):
            pass
        with tracing.span(names.TARGET_FORWARD):
            pass
    round_span, forward, root = spans.get_finished_spans()
    assert round_span.parent is not None
    assert round_span.parent.span_id == generate.get_span_context().span_id
    assert forward.parent is None
    assert root.parent is None
    assert forward.context.trace_id != root.context.trace_id


async def test_a_span_lasts_over_yields_and_is_never_current(spans: InMemorySpanExporter) -> None:
    async def stream() -> AsyncIterator[int]:
        with tracing.span(names.GENERATE):
            for index in range(3):
                yield index
                await asyncio.sleep(0)

    async for _ in stream():
        assert not trace.get_current_span().is_recording()
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.UNSET


async def test_a_stream_that_is_left_early_ends_its_span_as_cancelled(spans: InMemorySpanExporter) -> None:
    async def stream() -> AsyncIterator[int]:
        with tracing.span(names.GENERATE):
            yield 1

    left = stream()
    await anext(left)
    await left.aclose()  # type: ignore[attr-defined]
    (span,) = spans.get_finished_spans()
    assert dict(span.attributes or {}) == {names.ERROR_TYPE: "cancelled"}


async def test_a_cancelled_task_ends_its_span_with_the_cause(spans: InMemorySpanExporter) -> None:
    async def work() -> None:
        with tracing.span(names.VERIFY):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {}) == {names.ERROR_TYPE: "cancelled"}


def test_a_refusal_is_told_and_the_text_of_a_bug_is_not(spans: InMemorySpanExporter) -> None:
    with pytest.raises(InvalidArgumentError), tracing.span(names.GENERATE):
        raise InvalidArgumentError("top_k is 7; it must be 8")
    with pytest.raises(RuntimeError), tracing.span(names.GENERATE):
        raise RuntimeError("the prompt was: secret")
    refused, bug = spans.get_finished_spans()
    assert (refused.attributes or {})[names.ERROR_TYPE] == "INVALID_ARGUMENT"
    assert refused.status.description == "top_k is 7; it must be 8"
    assert (bug.attributes or {})[names.ERROR_TYPE] == "RuntimeError"
    assert "secret" not in bug.to_json()


def test_an_rpc_error_is_its_code() -> None:
    metadata = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, metadata, metadata)
    assert tracing.error_type(error) == "DEADLINE_EXCEEDED"


def test_a_context_travels_in_a_message(spans: InMemorySpanExporter) -> None:
    with tracing.span(names.VERIFY) as verify:
        message = tracing.to_trace_context(verify)
    assert message is not None
    received = model_pb2.TraceContext.FromString(message.SerializeToString())
    tracing.end_span(tracing.start_remote_span(names.TARGET_WINDOW, received, {names.ROUND_INDEX: 1}))
    sent, window = spans.get_finished_spans()
    assert window.context.trace_id == sent.context.trace_id
    assert window.parent is not None
    assert (window.parent.span_id, window.parent.is_remote) == (sent.context.span_id, True)


def test_without_a_context_a_remote_span_records_nothing(spans: InMemorySpanExporter) -> None:
    tracing.end_span(tracing.start_remote_span(names.TARGET_WINDOW, model_pb2.TraceContext(), {}))
    assert not spans.get_finished_spans()


def test_a_forward_links_to_what_it_served(spans: InMemorySpanExporter) -> None:
    served = [tracing.start_span(names.TARGET_WINDOW).get_span_context() for _ in range(3)]
    with tracing.span(names.TARGET_FORWARD, links=served, attributes={names.FORWARD_ROWS: 3}):
        pass
    (forward,) = spans.get_finished_spans()
    assert [link.context.span_id for link in forward.links] == [context.span_id for context in served]


def test_a_client_s_context_is_followed(spans: InMemorySpanExporter) -> None:
    parent = tracing.from_metadata([("user-agent", "x"), ("traceparent", TRACEPARENT), ("tracestate", "a=1")])
    assert isinstance(parent, SpanContext)
    with tracing.span(names.GENERATE, parent=parent) as span:
        message = tracing.to_trace_context(span)
    assert message is not None
    assert message.traceparent.startswith(f"00-{TRACE_ID}-")
    assert message.tracestate == "a=1"


def test_with_tracing_off_a_client_s_context_passes_through() -> None:
    parent = tracing.from_trace_context(model_pb2.TraceContext(traceparent=TRACEPARENT))
    with tracing.span(names.GENERATE, parent=parent) as span:
        assert not span.is_recording()
        assert tracing.to_trace_context(span) == model_pb2.TraceContext(traceparent=TRACEPARENT)


@pytest.mark.parametrize("traceparent", [TRACEPARENT, ""])
def test_below_a_span_that_records_nothing_no_other_is_made(traceparent: str) -> None:
    parent = tracing.from_trace_context(model_pb2.TraceContext(traceparent=traceparent))
    with tracing.span(names.GENERATE, parent=parent) as generate:
        with tracing.span(names.ROUND, parent=generate) as span:
            assert span is generate
        assert tracing.start_span(names.DRAFT, parent=generate) is generate


def test_with_tracing_off_and_no_context_nothing_is_sent() -> None:
    with tracing.span(names.GENERATE) as span:
        assert tracing.to_trace_context(span) is None
        assert tracing.log_fields(span) == {}


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00",
        TRACEPARENT.replace("-", "_"),
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        TRACEPARENT + "x" * 100_000,
        "00-é-é-01",
    ],
)
def test_a_malformed_context_is_none(traceparent: str) -> None:
    message = model_pb2.TraceContext(traceparent=traceparent, tracestate="a=" + "b" * 10_000)
    assert tracing.from_trace_context(message) is None
    assert tracing.from_metadata([("traceparent", traceparent)]) is None


def test_metadata_of_other_kinds_is_passed_over() -> None:
    assert tracing.from_metadata(None) is None
    assert tracing.from_metadata([("traceparent", b"bytes")]) is None
    assert tracing.from_metadata([("tracestate", "a=1")]) is None


def test_tracing_that_is_off_costs_microseconds() -> None:
    began = time.perf_counter()
    for _ in range(2000):
        with tracing.span(names.ROUND) as span:
            tracing.to_trace_context(span)
    # Measured: 3 microseconds; the bound leaves room for a busy machine.
    assert (time.perf_counter() - began) / 2000 < 50e-6


def test_a_context_that_is_too_long_is_left_behind() -> None:
    assert tracing.from_trace_context(model_pb2.TraceContext(traceparent=TRACEPARENT + "-" + "0" * 300)) is None
    message = model_pb2.TraceContext(traceparent=TRACEPARENT, tracestate=",".join(f"k{i}=v" for i in range(20_000)))
    found = tracing.from_trace_context(message)
    assert found is not None
    assert not found.trace_state

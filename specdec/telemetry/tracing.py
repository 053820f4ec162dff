"""Spans with explicit parents. None is ever "current": a span is passed on by hand and may outlive any await or yield.

With tracing off every function here costs about a microsecond, and a client's own trace context still travels along.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from specdec.errors import Refusal
from specdec.telemetry import names
from specdec.v1 import model_pb2

AttributeValue = str | bool | int | float | Sequence[str]

_MAX_TRACEPARENT_CHARACTERS = 256
_MAX_TRACESTATE_CHARACTERS = 512
"""What W3C asks everyone to propagate; a longer one is left behind."""
_NO_CONTEXT = Context()
_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("specdec")


def start_span(
    name: names.SpanName,
    *,
    parent: Span | SpanContext | None = None,
    links: Sequence[SpanContext] = (),
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Span:
    """Start a span; the caller ends it with `end_span`, in a `finally`. `span` does both where one block is enough.

    Args:
        name: entry of the table in names.py.
        parent: a span of this process, or the context that came with a message. None: the root of a new trace.
        links: contexts this span belongs to without being their child.
        attributes: keys from the table.
    """
    if isinstance(parent, NonRecordingSpan):
        # Below a span that records nothing nothing is recorded; so it does for all of them.
        return parent
    if isinstance(parent, SpanContext):
        parent = NonRecordingSpan(parent)
    context = _NO_CONTEXT if parent is None else trace.set_span_in_context(parent, _NO_CONTEXT)
    return _tracer.start_span(
        name.name,
        context=context,
        attributes=attributes,
        links=[Link(linked) for linked in links] if links else None,
        record_exception=False,
        set_status_on_exception=False,
    )


def start_remote_span(
    name: names.SpanName, context: model_pb2.TraceContext, attributes: Mapping[str, AttributeValue]
) -> Span:
    """A span under the trace that came with a message; one that records nothing if none came."""
    parent = from_trace_context(context)
    return trace.INVALID_SPAN if parent is None else start_span(name, parent=parent, attributes=attributes)


def timing_attributes(timings: model_pb2.Timings) -> dict[str, AttributeValue]:
    """What a service says of its part of a round, as attributes of its span."""
    return {
        names.QUEUE_SECONDS: timings.queue_microseconds / 1e6,
        names.COMPUTE_SECONDS: timings.compute_microseconds / 1e6,
        names.FORWARD_SEQUENCES: timings.batch_sequences,
        names.FORWARD_ROWS: timings.batch_rows,
    }


def end_span(span: Span, error: BaseException | None = None) -> None:
    """End a span; with `error` it is marked as failed, with its cause but not the text of an unexpected exception."""
    if error is not None and span.is_recording():
        cause = error_type(error)
        span.set_attribute(names.ERROR_TYPE, cause)
        span.set_status(Status(StatusCode.ERROR, str(error) if isinstance(error, Refusal) else cause))
    span.end()


def span(
    name: names.SpanName,
    *,
    parent: Span | SpanContext | None = None,
    links: Sequence[SpanContext] = (),
    attributes: Mapping[str, AttributeValue] | None = None,
) -> AbstractContextManager[Span]:
    """A span around a block, which may await and yield. An exception that leaves the block, or a cancel, fails it."""
    opened = start_span(name, parent=parent, links=links, attributes=attributes)
    # One that records nothing does not care how it ends, and is a context manager itself.
    return opened if isinstance(opened, NonRecordingSpan) else _ending(opened)


@contextmanager
def _ending(opened: Span) -> Iterator[Span]:
    try:
        yield opened
    except BaseException as error:
        end_span(opened, error)
        raise
    end_span(opened)


def error_type(error: BaseException) -> str:
    """Value of `error.type`: a status code, "cancelled", or a class."""
    if isinstance(error, Refusal):
        return error.code.name
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code().name
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    return type(error).__name__


def to_trace_context(span: Span) -> model_pb2.TraceContext | None:
    """What a message carries so that its receiver continues under `span`; None if there is no trace."""
    if not span.get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span, _NO_CONTEXT))
    return model_pb2.TraceContext(**carrier)


def from_trace_context(message: model_pb2.TraceContext) -> SpanContext | None:
    """The context that a message brought; None if it has none, or one that is malformed."""
    return _extract(message.traceparent, message.tracestate) if message.traceparent else None


def from_metadata(metadata: Sequence[tuple[str, str | bytes]] | None) -> SpanContext | None:
    """The context in the metadata (or headers) of a call, as any W3C client sends it; None if there is none."""
    found = {
        key: value for key, value in metadata or () if key in ("traceparent", "tracestate") and isinstance(value, str)
    }
    return _extract(found["traceparent"], found.get("tracestate", "")) if "traceparent" in found else None


def log_fields(span: Span) -> dict[str, str]:
    """`extra` of a log record that belongs to a span; empty if there is no trace."""
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}


def _extract(traceparent: str, tracestate: str) -> SpanContext | None:
    if len(traceparent) > _MAX_TRACEPARENT_CHARACTERS:
        return None
    if len(tracestate) > _MAX_TRACESTATE_CHARACTERS:
        tracestate = ""
    carrier = {"traceparent": traceparent, "tracestate": tracestate}
    context = trace.get_current_span(_propagator.extract(carrier, _NO_CONTEXT)).get_span_context()
    return context if context.is_valid else None

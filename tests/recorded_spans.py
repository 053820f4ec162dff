"""Tracing turned on inside a test, with the spans kept in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from specdec.telemetry import tracing


@contextmanager
def recorded_spans() -> Iterator[InMemorySpanExporter]:
    """Inside the block every span of this process is recorded; `get_finished_spans()` of what is yielded has them."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "_tracer", provider.get_tracer("test"))
        yield exporter
    provider.shutdown()

"""Values in histograms lead to the traces they are of, where Prometheus fetches them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Span, format_span_id, format_trace_id
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar

from specdec.telemetry import names
from specdec.telemetry.exemplars import ExemplarReader
from specdec.telemetry.prometheus import prometheus_name

BUCKET = f"{prometheus_name(names.FORWARD_DURATION)}_bucket"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def provider(registry: CollectorRegistry) -> Iterator[MeterProvider]:
    provider = MeterProvider([ExemplarReader(registry)])
    yield provider
    provider.shutdown()


def record(provider: MeterProvider, seconds: float, span: Span, service: str = "target") -> None:
    metric = names.FORWARD_DURATION
    histogram = provider.get_meter("test").create_histogram(metric.name, metric.unit, metric.description)
    histogram.record(seconds, {names.SERVICE: service}, trace.set_span_in_context(span))


def exemplars(registry: CollectorRegistry) -> dict[tuple[str, float], Exemplar]:
    """Of the buckets that have one, by the service and the bucket's bound."""
    text = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return {
        (sample.labels["specdec_service"], float(sample.labels["le"])): sample.exemplar
        for family in families
        for sample in family.samples
        if sample.name == BUCKET and sample.exemplar is not None
    }


def test_a_bucket_has_the_trace_of_a_value_in_it(registry: CollectorRegistry, provider: MeterProvider) -> None:
    tracer = TracerProvider().get_tracer("test")
    short, long, other = (tracer.start_span(name) for name in ("short", "long", "other"))
    record(provider, 7, short)
    record(provider, 1e9, long)
    record(provider, 7, other, service="draft")
    found = exemplars(registry)
    assert {service for service, _ in found} == {"target", "draft"}
    for (service, bound), exemplar in found.items():
        span = other if service == "draft" else long if bound == float("inf") else short
        context = span.get_span_context()
        assert exemplar.labels == {
            "trace_id": format_trace_id(context.trace_id),
            "span_id": format_span_id(context.span_id),
        }
        assert exemplar.value <= bound
    # One for each value, in the smallest bucket that holds it.
    assert found.keys() == {("target", 10.0), ("target", float("inf")), ("draft", 10.0)}
    # What was read is not told again.
    assert exemplars(registry) == {}


def test_a_trace_that_is_not_sampled_is_no_exemplar(registry: CollectorRegistry, provider: MeterProvider) -> None:
    record(provider, 0.003, TracerProvider(sampler=ALWAYS_OFF).get_tracer("test").start_span("off"))
    assert exemplars(registry) == {}


def test_plain_text_is_as_before(registry: CollectorRegistry, provider: MeterProvider) -> None:
    record(provider, 0.003, TracerProvider().get_tracer("test").start_span("short"))
    text = generate_latest(registry).decode()
    assert f'{BUCKET}{{le="+Inf",specdec_service="target"}} 1.0\n' in text
    assert "trace_id" not in text


def test_after_its_end_nothing_is_served(registry: CollectorRegistry) -> None:
    provider = MeterProvider([ExemplarReader(registry)])
    record(provider, 0.003, trace.INVALID_SPAN)
    assert BUCKET in generate_latest(registry).decode()
    provider.shutdown()
    assert generate_latest(registry) == b""

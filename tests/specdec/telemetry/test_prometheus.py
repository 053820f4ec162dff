"""Names for Prometheus, held against what its exporter makes of the instruments."""

from __future__ import annotations

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from specdec.telemetry import names
from specdec.telemetry.metrics import CandidateMetrics, DraftAheadMetrics, EngineMetrics, OrchestratorMetrics
from specdec.telemetry.prometheus import prometheus_label, prometheus_name


def test_every_metric_is_called_what_the_exporter_calls_it() -> None:
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(disable_target_info=True, registry=registry)])
    meter = provider.get_meter("test")
    for metric in names.METRICS.values():
        attributes = dict.fromkeys(metric.attributes, "x")
        if metric.kind == "counter":
            meter.create_counter(metric.name, metric.unit, metric.description).add(1, attributes)
        elif metric.kind == "gauge":
            meter.create_gauge(metric.name, metric.unit, metric.description).set(1, attributes)
        else:
            meter.create_histogram(metric.name, metric.unit, metric.description).record(1, attributes)
    text = generate_latest(registry).decode()
    series = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    for metric in names.METRICS.values():
        name = prometheus_name(metric)
        assert (f"{name}_bucket" if metric.kind == "histogram" else name) in series
    assert len({prometheus_name(metric) for metric in names.METRICS.values()}) == len(names.METRICS)


def test_the_instruments_are_made_without_complaint() -> None:
    registry = CollectorRegistry()
    meter = MeterProvider([PrometheusMetricReader(registry=registry)]).get_meter("test")
    OrchestratorMetrics(meter).resync("target")
    EngineMetrics("target", meter).lease_expired()
    DraftAheadMetrics(meter).outcome(is_hit=True)
    CandidateMetrics(meter).ended(1, "hit")
    text = generate_latest(registry).decode()
    assert f"{prometheus_name(names.RESYNCS)}{{" in text


@pytest.mark.parametrize(
    ("attribute", "label"),
    [(names.LINK, "specdec_link"), (names.POSITION, "position"), (names.MODEL, "gen_ai_request_model")],
)
def test_labels(attribute: str, label: str) -> None:
    assert prometheus_label(attribute) == label

"""Exemplars for Prometheus: which trace a value in a histogram is of. OpenTelemetry's own exporter leaves them out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import HistogramDataPoint, MetricsData
from opentelemetry.trace import format_span_id, format_trace_id
from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from specdec.telemetry.names import METRICS
from specdec.telemetry.prometheus import prometheus_label, prometheus_name

_Labels = frozenset[tuple[str, str]]
_Found = dict[tuple[str, _Labels], list[Exemplar]]
"""By the series of a histogram, in the order of their values."""


class ExemplarReader(PrometheusMetricReader):
    """Keeps metrics for Prometheus, with an exemplar in each bucket that a value of a sampled trace is in.

    One that was read is not told again. A scrape gets them if it asks for OpenMetrics, as Prometheus does.

    Args:
        registry: where they are served from.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._found: _Found = {}
        own = CollectorRegistry()
        super().__init__(scope_info_enabled=False, registry=own)
        self._outer = registry
        self._served = _WithExemplars(own, self._found)
        registry.register(self._served)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._found.clear()
        self._found.update(_exemplars(metrics_data))
        super()._receive_metrics(metrics_data, timeout_millis, **kwargs)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Serve nothing any more."""
        self._outer.unregister(self._served)
        super().shutdown(timeout_millis, **kwargs)


class _WithExemplars(Collector):
    def __init__(self, registry: CollectorRegistry, found: _Found) -> None:
        self._registry = registry
        self._found = found

    def describe(self) -> list[Metric]:
        """Nothing, or a registry would collect in order to know."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Everything that was counted, as of now."""
        for family in self._registry.collect():
            if family.type == "histogram":
                family.samples = list(self._marked(family.samples))
            yield family

    def _marked(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            bound = sample.labels.get("le")
            labels = frozenset((name, value) for name, value in sample.labels.items() if name != "le")
            waiting = self._found.get((sample.name.removesuffix("_bucket"), labels), [])
            # Buckets come in order, so this is the smallest one that the value is in.
            inside = [each for each in waiting if bound is not None and each.value <= float(bound)]
            del waiting[: len(inside)]
            yield sample._replace(exemplar=inside[-1]) if inside else sample


def _exemplars(metrics_data: MetricsData) -> _Found:
    found: _Found = {}
    scopes = (scope for resource in metrics_data.resource_metrics for scope in resource.scope_metrics)
    for metric in (metric for scope in scopes for metric in scope.metrics if metric.name in METRICS):
        name = prometheus_name(METRICS[metric.name])
        for point in metric.data.data_points:
            if isinstance(point, HistogramDataPoint) and point.exemplars:
                labels = frozenset(
                    (prometheus_label(key), str(value)) for key, value in (point.attributes or {}).items()
                )
                exemplars = (
                    Exemplar(
                        {"trace_id": format_trace_id(each.trace_id), "span_id": format_span_id(each.span_id)},
                        float(each.value),
                        each.time_unix_nano / 1e9,
                    )
                    for each in point.exemplars
                    if each.trace_id is not None and each.span_id is not None
                )
                found[name, labels] = sorted(exemplars, key=lambda each: each.value)
    return found

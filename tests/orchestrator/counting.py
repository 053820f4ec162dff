"""Metrics of a test, kept in memory and read back."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from specdec.telemetry.metrics import OrchestratorMetrics
from specdec.telemetry.names import MetricName


class Counting:
    """The orchestrator's metrics, and what they have counted."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.metrics = OrchestratorMetrics(MeterProvider(metric_readers=[self._reader]).get_meter("test"))

    def by_attribute(self, metric: MetricName) -> dict[str, float]:
        """Value of a counter or gauge for each value of its (only) attribute, or for ""."""
        data = self._reader.get_metrics_data()
        values: dict[str, float] = {}
        for resource in data.resource_metrics if data is not None else []:
            for scope in resource.scope_metrics:
                for found in scope.metrics:
                    if found.name == metric.name:
                        for point in found.data.data_points:
                            key = ",".join(str(value) for value in (point.attributes or {}).values())
                            values[key] = float(point.value if hasattr(point, "value") else point.count)
        return values

    def total(self, metric: MetricName) -> float:
        """Sum over all attributes."""
        return sum(self.by_attribute(metric).values())

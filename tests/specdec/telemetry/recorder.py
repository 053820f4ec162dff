"""Metrics of a test, kept in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from specdec.telemetry import names


class Recorder:
    """A meter whose metrics can be read back."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.meter = self._provider.get_meter("test")

    def metrics(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        return {
            metric.name: metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, name: names.MetricName) -> list[Any]:
        return list(self.metrics()[name.name].data.data_points)

    def values(self, name: names.MetricName) -> dict[tuple[Any, ...], Any]:
        """Value of each combination of the metric's attributes, in the order of the table; of a histogram the sum."""
        return {
            tuple((point.attributes or {}).get(attribute) for attribute in name.attributes): getattr(
                point, "value", None
            )
            if hasattr(point, "value")
            else point.sum
            for point in self.points(name)
        }

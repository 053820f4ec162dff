"""What one process counted until a moment."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from specdec.telemetry.names import METRICS, MetricName
from specdec.telemetry.prometheus import prometheus_label, prometheus_name

Labels = frozenset[tuple[str, str]]

_SUFFIXES = ("", "_bucket", "_sum", "_count")
_WANTED = frozenset(prometheus_name(metric) + suffix for metric in METRICS.values() for suffix in _SUFFIXES)
_TARGET_INFO = "target_info"


class MalformedMetricsError(Exception):
    """What was read is not the text format of Prometheus."""


@dataclass(frozen=True)
class Scrape:
    """Samples of the project's own metrics."""

    at_seconds: float
    """Of a clock that only this process knows."""
    series: Mapping[str, Mapping[Labels, float]]
    """Values by name, as Prometheus has it, and by labels."""
    service_name: str = ""
    """`service.name` of the process."""

    @classmethod
    def parse(cls, text: str, at_seconds: float) -> Scrape:
        """Read the text format.

        Raises:
            MalformedMetricsError: it is something else.
        """
        from prometheus_client.parser import text_string_to_metric_families

        series: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        service_name = ""
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == _TARGET_INFO:
                        service_name = sample.labels.get("service_name", "")
                    elif sample.name in _WANTED and math.isfinite(sample.value):
                        series[sample.name][frozenset(sample.labels.items())] = sample.value
        # The parser has no error of its own.
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise MalformedMetricsError from error
        if not series and not service_name and text.strip() and not text.lstrip().startswith("#"):
            raise MalformedMetricsError
        return cls(at_seconds, series, service_name)

    def total(self, metric: MetricName, **labels: str) -> float | None:
        """Sum over the series of a counter or gauge that have these labels; None if there are none."""
        values = [value for found, value in self.of(metric).items() if set(labels.items()) <= found]
        return sum(values) if values else None

    def by_label(self, metric: MetricName, attribute: str) -> dict[str, float]:
        """Sums of a counter or gauge by the value of one of its attributes."""
        sums: defaultdict[str, float] = defaultdict(float)
        for labels, value in self.of(metric).items():
            sums[label_of(labels, attribute)] += value
        return dict(sums)

    def of(self, metric: MetricName, suffix: str = "") -> Mapping[Labels, float]:
        """The series of a metric; of a histogram there are those of `_bucket`, `_sum` and `_count`."""
        return self.series.get(prometheus_name(metric) + suffix, {})


def label_of(labels: Labels, attribute: str) -> str:
    """The value of an attribute of the table; empty if it is not among these labels."""
    return dict(labels).get(prometheus_label(attribute), "")

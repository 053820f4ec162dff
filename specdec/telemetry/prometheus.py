"""What the metrics of names.py are called where Prometheus fetches them."""

from __future__ import annotations

import re

from specdec.telemetry.names import MetricName

_UNITS = {"s": "seconds", "By": "bytes"}
"""The others are annotations, or 1, and add nothing."""


def prometheus_name(metric: MetricName) -> str:
    """The name as OpenTelemetry maps it for Prometheus: dots to underscores, the unit, and _total behind a counter.

    A histogram has three series of this name, with _bucket, _sum and _count behind it.
    """
    name = re.sub(r"[^a-zA-Z0-9:]+", "_", metric.name)
    unit = _UNITS.get(metric.unit, "")
    if unit and not name.endswith(f"_{unit}"):
        name += f"_{unit}"
    return f"{name}_total" if metric.kind == "counter" else name


def prometheus_label(attribute: str) -> str:
    """The name of a label: an attribute of the table as OpenTelemetry maps it for Prometheus."""
    return re.sub(r"[^a-zA-Z0-9_]+", "_", attribute)

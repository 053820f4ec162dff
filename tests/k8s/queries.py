"""What queries of Prometheus name, held against the table of metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specdec.telemetry import names
from specdec.telemetry.prometheus import prometheus_name

_OF_SCRAPING = {"le", "namespace", "pod"}
"""Labels that Prometheus adds."""
_SUFFIXES = ("_bucket", "_sum", "_count")
_WORD = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_BY = re.compile(r"\bby\s*\(([^)]*)\)")
_MATCHERS = re.compile(r"\{([^}]*)\}")
_MATCHER = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)\s*(?:=~|!~|!=|=)")
_NO_METRIC = re.compile(r'"[^"]*"|\[[^\]]*\]|\$\w+')


def _series() -> dict[str, set[str]]:
    """Each time series that the services serve, and its labels."""
    found: dict[str, set[str]] = {}
    for metric in names.METRICS.values():
        labels = {re.sub(r"\W", "_", attribute) for attribute in metric.attributes}
        suffixes = _SUFFIXES if metric.kind == "histogram" else ("",)
        found |= {prometheus_name(metric) + suffix: labels for suffix in suffixes}
    return found


SERIES = _series()


def metrics_of(query: str) -> set[str]:
    """The time series that a query names; functions are told by the bracket behind them."""
    rest = _NO_METRIC.sub(" ", _MATCHERS.sub(" ", _BY.sub(" ", query)))
    return {
        match[0]
        for match in _WORD.finditer(rest)
        if not rest[match.end() :].lstrip().startswith("(") and match[0] not in ("or", "and", "unless")
    }


def labels_of(query: str) -> set[str]:
    """The labels that a query groups by or selects with."""
    grouped = {word for match in _BY.finditer(query) for word in _WORD.findall(match[1])}
    return grouped | {word for match in _MATCHERS.finditer(query) for word in _MATCHER.findall(match[1])}


def query_problems(query: str) -> Iterator[str]:
    """A sentence for each metric that no service serves, and for each label that none of the metrics has."""
    metrics = metrics_of(query)
    unknown = sorted(metrics - SERIES.keys())
    if unknown or not metrics:
        yield f"no service serves {', '.join(unknown) or 'what is asked for'}"
    known = set.union(_OF_SCRAPING, *(SERIES[metric] for metric in metrics & SERIES.keys()))
    if others := sorted(labels_of(query) - known):
        yield f"none of {', '.join(sorted(metrics))} has a label {', '.join(others)}"

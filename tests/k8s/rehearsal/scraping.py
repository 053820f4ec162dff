"""What Prometheus would fetch from a pod."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from specdec.telemetry import names
from specdec.telemetry.prometheus import prometheus_name
from tests.k8s.queries import metrics_of
from tests.k8s.rehearsal.kubelet import RehearsedPod
from tests.k8s.test_monitoring import QUERIES, RULES

NAMED = {name for query in (*QUERIES, *(rule["expr"] for rule in RULES)) for name in metrics_of(query)}
"""Time series of the alert rules and the dashboard."""
OF_RARE_EVENTS = {
    prometheus_name(metric)
    for metric in (
        *(names.RESYNCS, names.STALE_EVENTS, names.EXPIRED_LEASES, names.FALLBACKS),
        *(names.KV_EVICTIONS, names.KV_PREEMPTIONS, names.AHEAD_PROPOSALS, names.CANDIDATE_WINDOWS, names.OVERLAP),
    )
}
"""Those that nothing may have been counted in."""
_SECONDS = 10


def scrape(pod: RehearsedPod) -> dict[str, float]:
    """Each time series that a pod serves, by its name; those that differ in labels are added up. Blocks."""
    text = urllib.request.urlopen(f"http://{pod.address}:{pod.port('metrics')}/metrics", timeout=_SECONDS).read()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def num_passes(pod: RehearsedPod) -> float:
    """Forward passes of a draft or target service until now. Blocks."""
    return scrape(pod).get(f"{prometheus_name(names.FORWARD_DURATION)}_count", 0.0)

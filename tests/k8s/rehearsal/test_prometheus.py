"""Prometheus itself scrapes rehearsed pods by the job of the manifests, and runs the alert rules and the dashboard."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from specdec.cli.ports import choose_ports
from specdec.telemetry import names
from specdec.telemetry.prometheus import prometheus_name
from tests.k8s.conftest import Fresh
from tests.k8s.documents import SERVICES
from tests.k8s.queries import metrics_of
from tests.k8s.rehearsal.cluster import Cluster
from tests.k8s.rehearsal.load import Load
from tests.k8s.rehearsal.prometheus import NAMESPACE, Prometheus
from tests.k8s.rehearsal.scraping import NAMED, OF_RARE_EVENTS
from tests.k8s.rendering import Combination
from tests.k8s.test_monitoring import QUERIES, RULES

pytestmark = pytest.mark.promtool

START_SECONDS = 90.0
NUM_CLIENTS = 4
UNSEEN = {*OF_RARE_EVENTS, prometheus_name(names.FAILOVERS)}
"""Nothing moves here."""


async def test_prometheus_finds_the_pods_and_answers_every_query(
    fresh: Fresh, tmp_path: Path, changes: dict[str, dict[str, str]]
) -> None:
    documents = fresh(Combination("overlays/cpu", ("monitoring", "otel-collector")))
    # There is no collector, which is no reason to fail.
    (port,) = choose_ports([("127.0.0.1", 0)])
    spans = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    changes = {component: {**changes.get(component, {}), **spans} for component in SERVICES}
    (tmp_path / "pods").mkdir()
    (tmp_path / "prometheus").mkdir()
    async with (
        Cluster(documents, tmp_path / "pods", changes) as cluster,
        Prometheus(documents, tmp_path / "prometheus") as prometheus,
    ):
        pods = [pod for component in SERVICES for pod in await cluster.scale(component, 1)]
        await asyncio.gather(*(pod.ready(START_SECONDS) for pod in pods))
        prometheus.find(pods)
        # One for each pod, although each declares several ports.
        up = {f"http://{pod.address}:{pod.port('metrics')}/metrics": "up" for pod in pods}
        await prometheus.until(lambda: prometheus.targets() == up, 20)

        address = f"{pods[-1].address}:{pods[-1].port('grpc')}"
        async with Load(address, NUM_CLIENTS) as load:
            await load.finished(NUM_CLIENTS, 60)
            # Rates need two scrapes that differ.
            await load.finished(4 * NUM_CLIENTS, 60)
            await asyncio.sleep(3)
            assert load.failures == []
            # Buckets lead to traces.
            marked = await asyncio.to_thread(prometheus.exemplars, f"{prometheus_name(names.ROUND_DURATION)}_bucket")
            assert marked
            assert all(re.fullmatch("[0-9a-f]{32}", labels["trace_id"]) for labels in marked)
            served = await asyncio.to_thread(prometheus.series)
            assert NAMED - served <= UNSEEN
            empty = [query for query in QUERIES if not await asyncio.to_thread(prometheus.query, _filled(query))]
        assert [query for query in empty if not metrics_of(query) & UNSEEN] == []
        ready = await asyncio.to_thread(prometheus.query, 'specdec_replicas_available{specdec_link="target"}')
        assert [each["metric"]["pod"] for each in ready] == [pods[-1].name]
        assert [each["metric"]["namespace"] for each in ready] == [NAMESPACE]

        rules = await asyncio.to_thread(prometheus.alerts)
        assert {name: health for name, (_, health) in rules.items()} == {rule["alert"]: "ok" for rule in RULES}
        assert rules["SpecdecNoTarget"] == ("inactive", "ok")
        await cluster.scale("target", 0)
        await prometheus.until(lambda: prometheus.alerts()["SpecdecNoTarget"] == ("pending", "ok"), 30)


def _filled(query: str) -> str:
    """As Grafana fills its variables in."""
    return query.replace("$namespace", NAMESPACE).replace("$__rate_interval", "20s")

"""Alert rules, dashboard, autoscalers and the collector name what the services emit, and pages that are there."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from specdec.telemetry import names
from tests.k8s.conftest import Fresh
from tests.k8s.documents import find, matches, of_kind, pod_of, pods
from tests.k8s.manifests import settings_of
from tests.k8s.queries import labels_of, metrics_of, query_problems
from tests.k8s.rendering import K8S, Combination

OPERATIONS = K8S.parent / "docs" / "operations.md"
ALERTS = yaml.safe_load((K8S / "components/monitoring/alerts.yaml").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((K8S / "components/monitoring/specdec.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES: list[str] = [target["expr"] for panel in PANELS for target in panel["targets"]]
ADAPTER = yaml.safe_load((K8S / "components/autoscaling/adapter-rules.yaml").read_text(encoding="utf-8"))["rules"]
COLLECTOR = yaml.safe_load((K8S / "components/otel-collector/config.yaml").read_text(encoding="utf-8"))


def test_alert_rules_name_what_is_served() -> None:
    assert {rule["alert"]: list(query_problems(rule["expr"])) for rule in RULES} == {
        rule["alert"]: [] for rule in RULES
    }


def test_dashboard_names_what_is_served() -> None:
    assert len(QUERIES) > 30
    assert {query: list(query_problems(query)) for query in QUERIES if list(query_problems(query))} == {}


def test_dashboard_shows_labels_that_its_queries_have() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels_of(target["expr"])


def test_dashboard_has_what_an_operator_looks_for() -> None:
    titles = {panel["title"] for panel in PANELS}
    assert {"Acceptance by position", "Mean acceptance length", "Round time split", "Failovers"} <= titles
    assert {"Tokens a second (goodput)", "Key-value memory in use"} <= titles
    assert any("overlap" in title for title in titles)
    assert any(title.startswith("Idle") for title in titles)
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)


def test_panels_do_not_cover_each_other() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("sum(rate(specdec_resync_total[5m]))", "no service serves specdec_resync_total"),
        ("sum by (specdec_kind) (rate(specdec_resyncs_total[5m]))", "has a label specdec_kind"),
        ('specdec_replicas_available{link="draft"}', "has a label link"),
        ("specdec_round_duration_seconds", "no service serves specdec_round_duration_seconds"),
        ("vector(1)", "no service serves what is asked for"),
    ],
)
def test_a_misspelt_name_is_noticed(query: str, problem: str) -> None:
    assert any(problem in found for found in query_problems(query)), list(query_problems(query))


def test_metrics_and_labels_are_told_apart() -> None:
    query = 'histogram_quantile(0.9, sum by (le, pod) (rate(a_bucket{x=~"b|c"}[5m]))) / scalar(d{y="e"}) or f > 1'
    assert metrics_of(query) == {"a_bucket", "d", "f"}
    assert labels_of(query) == {"le", "pod", "x", "y"}


def test_every_alert_has_a_runbook_that_is_there() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in OPERATIONS.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    }
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/operations.md"
        assert anchor in headings, rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_prometheus_is_told_where_the_metrics_are(fresh: Fresh) -> None:
    documents = fresh(Combination("base", ("monitoring", "otel-collector")))
    for component in ("draft", "target", "orchestrator", "otel-collector"):
        pod = pod_of(documents, component)
        annotations = pod.workload["spec"]["template"]["metadata"]["annotations"]
        assert annotations["prometheus.io/scrape"] == "true"
        assert int(annotations["prometheus.io/port"]) == pod.ports["metrics"]
        if component != "otel-collector":
            assert settings_of(documents, component).metrics_port == pod.ports["metrics"]


def test_rules_and_dashboard_are_in_config_maps(fresh: Fresh) -> None:
    documents = fresh(Combination("base", ("monitoring",)))
    data = {each["metadata"]["name"]: each["data"] for each in of_kind(documents, "ConfigMap")}
    assert yaml.safe_load(data["specdec-alerts"]["alerts.yaml"]) == ALERTS
    assert json.loads(data["specdec-dashboard"]["specdec.json"]) == DASHBOARD


def test_the_operator_is_given_the_same_rules_and_the_same_pods(fresh: Fresh) -> None:
    documents = fresh(Combination("base", ("monitoring-operator", "monitoring", "otel-collector")))
    (rules,) = of_kind(documents, "PrometheusRule")
    assert rules["spec"]["groups"] == ALERTS["groups"], "monitoring-operator/rules.yaml is not monitoring/alerts.yaml"
    (monitor,) = of_kind(documents, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for pod in pods(documents):
        annotations = pod.workload["spec"]["template"]["metadata"]["annotations"]
        assert matches(monitor["spec"]["selector"], pod.labels)
        assert str(pod.ports[endpoint["port"]]) == annotations["prometheus.io/port"]
        assert endpoint["path"] == annotations["prometheus.io/path"]


def test_the_adapter_makes_what_the_autoscalers_ask_for(fresh: Fresh) -> None:
    documents = fresh(Combination("base", ("autoscaling",)))
    made = {rule["name"]["as"] for rule in ADAPTER}
    asked = {
        metric["pods"]["metric"]["name"]
        for autoscaler in of_kind(documents, "HorizontalPodAutoscaler")
        for metric in autoscaler["spec"]["metrics"]
        if metric["type"] == "Pods"
    }
    assert asked == made
    on_cpu = find(documents, "HorizontalPodAutoscaler", "orchestrator")["spec"]["metrics"]
    assert [metric["resource"]["name"] for metric in on_cpu] == ["cpu"]


def test_the_adapter_reads_what_is_served() -> None:
    for rule in ADAPTER:
        series = rule["seriesQuery"]
        (name,) = metrics_of(series)
        query = rule["metricsQuery"].replace("<<.Series>>", name).replace("<<.GroupBy>>", "namespace, pod")
        for each in (series, query.replace("<<.LabelMatchers>>", 'namespace="x"')):
            assert list(query_problems(each)) == []


def test_the_collector_is_well_formed_and_listens_where_it_is_asked(fresh: Fresh) -> None:
    pipelines = COLLECTOR["service"]["pipelines"]
    for kind in ("receivers", "processors", "exporters"):
        assert {name for pipeline in pipelines.values() for name in pipeline[kind]} == COLLECTOR[kind].keys()
    assert COLLECTOR["service"]["extensions"] == [*COLLECTOR["extensions"]]
    documents = fresh(Combination("base", ("otel-collector",)))
    pod = pod_of(documents, "otel-collector")
    endpoint = COLLECTOR["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert endpoint.endswith(f":{pod.ports['otlp']}")
    assert COLLECTOR["extensions"]["health_check"]["endpoint"].endswith(f":{pod.ports['health']}")
    (reader,) = COLLECTOR["service"]["telemetry"]["metrics"]["readers"]
    assert reader["pull"]["exporter"]["prometheus"]["port"] == pod.ports["metrics"]
    port = find(documents, "Service", "otel-collector")["spec"]["ports"][0]["port"]
    for component in ("draft", "target", "orchestrator"):
        variables = find(documents, "ConfigMap", component)["data"]
        assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://specdec-otel-collector:{port}"
    given = {variable["name"] for variable in pod.spec["containers"][0]["env"]}
    assert set(re.findall(r"\$\{env:(\w+)\}", json.dumps(COLLECTOR))) <= given


def test_sampling_keeps_slow_and_failed_requests_and_names_what_is_emitted() -> None:
    policies = {policy["name"]: policy for policy in COLLECTOR["processors"]["tail_sampling"]["policies"]}
    kinds = {policy["type"] for policy in policies.values()}
    assert kinds == {"status_code", "latency", "ottl_condition", "probabilistic"}
    assert policies["failed"]["status_code"]["status_codes"] == ["ERROR"]
    for policy in policies.values():
        for condition in policy.get("ottl_condition", {}).get("span", []):
            assert set(re.findall(r'name == "([^"]+)"', condition)) <= names.SPANS.keys()
            for attribute in re.findall(r'attributes\["([^"]+)"\]', condition):
                assert attribute in names.SPANS["round"].attributes
        for condition in policy.get("ottl_condition", {}).get("spanevent", []):
            assert set(re.findall(r'name == "([^"]+)"', condition)) == {names.FAILOVER_EVENT, names.RESYNC_EVENT}


def test_every_directory_is_described() -> None:
    text = (K8S / "README.md").read_text(encoding="utf-8")
    for component in sorted(path.name for path in (K8S / "components").iterdir()):
        assert f"`{component}`" in text
    for overlay in sorted((K8S / "overlays").iterdir()):
        assert f"overlays/{overlay.name}" in text
        assert len((overlay / "README.md").read_text(encoding="utf-8").splitlines()) < 40, "more than a screen"

"""Who reaches whom: only orchestrators the services, only clients the orchestrators, and little gets out."""

from __future__ import annotations

import pytest

from tests.k8s.conftest import Fresh
from tests.k8s.documents import SERVICES, find, of_kind, pod_of, pods
from tests.k8s.manifests import settings_of
from tests.k8s.reachability import OUTSIDE, End, end_of, is_covered, reaches
from tests.k8s.rendering import COMPONENTS, Combination, Document

EVERYTHING = Combination("overlays/cpu", COMPONENTS)
PORTS = {"draft": 50051, "target": 50052, "orchestrator": 50050}
DNS = End({"k8s-app": "kube-dns"}, "kube-system", {"kubernetes.io/metadata.name": "kube-system"})
PROMETHEUS = End({"app": "prometheus"}, "monitoring", {"specdec-monitoring": "true"})
STRANGER = End({"app": "stranger"})
CLIENT = End({"specdec-client": "true"})
CLIENT_ELSEWHERE = End({"app": "web"}, "web", {"specdec-client": "true"})
NEIGHBOUR_ELSEWHERE = End({"specdec-client": "true"}, "web")
NAMESAKE_ELSEWHERE = End({"app.kubernetes.io/name": "specdec", "app.kubernetes.io/component": "orchestrator"}, "web")


@pytest.fixture(params=[Combination("base"), EVERYTHING], ids=["base", "everything"])
def documents(request: pytest.FixtureRequest, fresh: Fresh) -> list[Document]:
    return fresh(request.param)


def ends(documents: list[Document]) -> dict[str, End]:
    return {pod.component: end_of(pod) for pod in pods(documents)}


def test_only_the_orchestrator_reaches_draft_and_target(documents: list[Document]) -> None:
    own = ends(documents)
    for service in ("draft", "target"):
        port = PORTS[service]
        assert port == settings_of(documents, service).port
        reaching = [name for name, end in own.items() if reaches(documents, end, own[service], port)]
        assert reaching == ["orchestrator"]
        for other in (CLIENT, CLIENT_ELSEWHERE, STRANGER, NAMESAKE_ELSEWHERE, PROMETHEUS, OUTSIDE):
            assert not reaches(documents, other, own[service], port)


def test_only_clients_reach_the_orchestrator(documents: list[Document]) -> None:
    own = ends(documents)
    callers = (CLIENT, CLIENT_ELSEWHERE, STRANGER, NEIGHBOUR_ELSEWHERE, PROMETHEUS, *own.values())
    reaching = [end for end in callers if reaches(documents, end, own["orchestrator"], PORTS["orchestrator"])]
    assert reaching == [CLIENT, CLIENT_ELSEWHERE]


def test_the_outside_reaches_it_through_the_gateway_only(fresh: Fresh) -> None:
    for combination, is_open in ((Combination("base"), False), (EVERYTHING, True)):
        documents = fresh(combination)
        for name, end in ends(documents).items():
            for port in pod_of(documents, name).ports.values():
                assert reaches(documents, OUTSIDE, end, port) == (is_open and port == PORTS["orchestrator"])


def test_prometheus_reaches_metrics_and_nobody_else_does(documents: list[Document]) -> None:
    own = ends(documents)
    for name in SERVICES:
        port = settings_of(documents, name).metrics_port
        assert port is not None
        assert reaches(documents, PROMETHEUS, own[name], port)
        for other in (CLIENT, CLIENT_ELSEWHERE, STRANGER, OUTSIDE, *own.values()):
            assert not reaches(documents, other, own[name], port)
        assert not reaches(documents, PROMETHEUS, own[name], PORTS[name])


def test_names_are_found_and_nothing_else_leaves(documents: list[Document]) -> None:
    for name in SERVICES:
        end = ends(documents)[name]
        assert reaches(documents, end, DNS, 53, protocol="UDP")
        assert not reaches(documents, end, DNS, 443)
        for port in (53, 80, 443, 4317):
            assert not reaches(documents, end, OUTSIDE, port)
            assert not reaches(documents, end, STRANGER, port) or port == 4317


def test_spans_reach_the_collector_and_go_on_to_the_backend(fresh: Fresh) -> None:
    documents = fresh(EVERYTHING)
    own = ends(documents)
    for name in SERVICES:
        assert reaches(documents, own[name], own["otel-collector"], 4317)
        assert not reaches(documents, own[name], own["otel-collector"], 13133)
    assert reaches(documents, own["otel-collector"], PROMETHEUS, 4317)
    assert not reaches(documents, own["otel-collector"], OUTSIDE, 4317)
    assert not reaches(documents, STRANGER, own["otel-collector"], 4317)


def test_models_are_fetched_by_the_services_or_by_the_job(fresh: Fresh) -> None:
    cpu = fresh(Combination("overlays/cpu"))
    assert [name for name, end in ends(cpu).items() if reaches(cpu, end, OUTSIDE, 443)] == ["draft", "target"]
    cached = fresh(Combination("overlays/cpu", ("model-cache",)))
    assert [name for name, end in ends(cached).items() if reaches(cached, end, OUTSIDE, 443)] == ["model-cache"]
    inside = End(namespace="", address="10.1.2.3")
    assert not reaches(cached, ends(cached)["model-cache"], inside, 443)


def test_a_policy_that_is_taken_away_leaves_a_pod_open(fresh: Fresh) -> None:
    documents = fresh(Combination("base"))
    target = pod_of(documents, "target")
    documents.remove(find(documents, "NetworkPolicy", "default-deny"))
    assert is_covered(documents, target)
    for policy in of_kind(documents, "NetworkPolicy"):
        documents.remove(policy)
    assert not is_covered(documents, target)
    assert reaches(documents, STRANGER, end_of(target), PORTS["target"])

"""The base manifests hang together, agree with the settings classes, and a slip in them is noticed."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path

import kubernetes_validate
import pytest

from tests.k8s.manifests import SETTINGS, Document, find, problems, render

ROOT = Path(__file__).parents[2]
Change = Callable[[list[Document]], None]


@pytest.fixture(scope="module")
def rendered() -> list[Document]:
    return render(ROOT / "k8s" / "base")


@pytest.fixture
def documents(rendered: list[Document]) -> list[Document]:
    return copy.deepcopy(rendered)


def test_nothing_is_wrong(documents: list[Document]) -> None:
    assert problems(documents) == []


def test_each_component_has_one_of_each_kind_and_there_is_nothing_else(documents: list[Document]) -> None:
    expected = [find(documents, kind, name) for name in SETTINGS for kind in ("ConfigMap", "Service", "Deployment")]
    assert len(documents) == len(expected)
    assert all("namespace" not in document["metadata"] for document in documents)


def test_every_document_is_valid_strictly(documents: list[Document]) -> None:
    for document in documents:
        kubernetes_validate.validate(document, "1.32", strict=True)


def test_a_field_that_kubernetes_does_not_know_is_invalid(documents: list[Document]) -> None:
    pod(documents, "target")["restartPolici"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(find(documents, "Deployment", "target"), "1.32", strict=True)


def test_images_and_labels_carry_the_version_of_the_project(documents: list[Document]) -> None:
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    version = declared[1]
    for component in SETTINGS:
        assert container(documents, component)["image"] == f"specdec-{component}:{version}"
    assert {document["metadata"]["labels"]["app.kubernetes.io/version"] for document in documents} == {version}


def test_an_update_never_takes_the_last_replica_away(documents: list[Document]) -> None:
    for component in SETTINGS:
        strategy = find(documents, "Deployment", component)["spec"]["strategy"]
        assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def pod(documents: list[Document], component: str) -> Document:
    spec: Document = find(documents, "Deployment", component)["spec"]["template"]["spec"]
    return spec


def container(documents: list[Document], component: str) -> Document:
    (only,) = pod(documents, component)["containers"]
    assert isinstance(only, dict)
    return only


def settings(documents: list[Document], component: str) -> dict[str, str]:
    data: dict[str, str] = find(documents, "ConfigMap", component)["data"]
    return data


def rename_label(documents: list[Document]) -> None:
    labels = find(documents, "Deployment", "draft")["spec"]["template"]["metadata"]["labels"]
    labels["app.kubernetes.io/component"] = "drafter"


def select_by_name_only(documents: list[Document]) -> None:
    del find(documents, "Service", "draft")["spec"]["selector"]["app.kubernetes.io/component"]


def give_a_cluster_address(documents: list[Document]) -> None:
    del find(documents, "Service", "target")["spec"]["clusterIP"]


def lead_elsewhere(documents: list[Document]) -> None:
    find(documents, "Service", "target")["spec"]["ports"][0]["targetPort"] = "http"


def map_a_port(documents: list[Document]) -> None:
    find(documents, "Service", "orchestrator")["spec"]["ports"][0]["port"] = 80


def misspell_a_setting(documents: list[Document]) -> None:
    values = settings(documents, "target")
    values["SPECDEC_TARGET_MODLE"] = values.pop("SPECDEC_TARGET_MODEL")


def give_a_value_out_of_range(documents: list[Document]) -> None:
    settings(documents, "draft")["SPECDEC_DRAFT_MAX_NUM_SEQUENCES"] = "0"


def name_an_absent_service(documents: list[Document]) -> None:
    settings(documents, "orchestrator")["SPECDEC_ORCHESTRATOR_TARGET"] = "dns:///target:50052"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (rename_label, "the selector of the deployment does not match"),
        (rename_label, "the selector of the service does not match"),
        (select_by_name_only, "the selector of the service matches pods of other components"),
        (give_a_cluster_address, "is not headless"),
        (lead_elsewhere, "leads to http"),
        (map_a_port, "cannot map port 80"),
        (misspell_a_setting, "TargetSettings reads no SPECDEC_TARGET_MODLE"),
        (give_a_value_out_of_range, "max_num_sequences"),
        (name_an_absent_service, "is not the address of the target service"),
        (lambda d: settings(d, "target").update(SPECDEC_TARGET_PORT="50053"), "the container declares"),
        (lambda d: settings(d, "target").update(SPECDEC_TARGET_HOST="127.0.0.1"), "which no other pod reaches"),
        (lambda d: settings(d, "draft").pop("SPECDEC_DRAFT_INSECURE_BIND"), "it will not start"),
        (lambda d: settings(d, "draft").update(SPECDEC_DRAFT_DRAIN_SECONDS="60"), "an orderly end takes up to"),
        (lambda d: container(d, "draft").pop("startupProbe"), "the startupProbe is missing"),
        (lambda d: container(d, "orchestrator").pop("readinessProbe"), "the readinessProbe is missing"),
        (lambda d: container(d, "target").pop("livenessProbe"), "the livenessProbe is missing"),
        (lambda d: container(d, "target")["livenessProbe"]["grpc"].update(port=1), "the livenessProbe does not ask"),
        (lambda d: container(d, "target")["livenessProbe"]["grpc"].pop("service"), "the livenessProbe does not ask"),
        (lambda d: container(d, "target")["readinessProbe"].pop("grpc"), "the readinessProbe does not ask"),
        (lambda d: container(d, "target")["startupProbe"].update(failureThreshold=3), "gives up after"),
        (lambda d: container(d, "target")["envFrom"][0]["configMapRef"].update(name="other"), "its settings are in"),
        (lambda d: pod(d, "target")["securityContext"].update(runAsUser=0), "it may run as root"),
        (lambda d: pod(d, "draft")["securityContext"].pop("runAsNonRoot"), "it may run as root"),
        (lambda d: pod(d, "draft")["securityContext"].pop("seccompProfile"), "seccomp"),
        (lambda d: container(d, "draft")["securityContext"].pop("capabilities"), "keeps capabilities"),
        (lambda d: container(d, "draft")["securityContext"].pop("readOnlyRootFilesystem"), "is writable"),
        (lambda d: container(d, "draft")["securityContext"].pop("allowPrivilegeEscalation"), "gain privileges"),
        (lambda d: pod(d, "orchestrator").pop("enableServiceLinks"), "would be read as settings"),
        (lambda d: pod(d, "orchestrator").pop("automountServiceAccountToken"), "a token of the cluster"),
        (lambda d: container(d, "target")["resources"]["limits"].pop("memory"), "its limits name no cpu or no memory"),
        (lambda d: container(d, "target")["volumeMounts"].pop(), "and mounts"),
        (lambda d: container(d, "target")["env"][0].update(value="/cache"), "is on no writable volume"),
    ],
)
def test_a_slip_is_noticed(documents: list[Document], change: Change, problem: str) -> None:
    change(documents)
    assert any(problem in found for found in problems(documents)), problems(documents)

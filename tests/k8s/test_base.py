"""The base manifests: what there is, that it hangs together, and that the services would read it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.k8s.conftest import Fresh
from tests.k8s.documents import SERVICES, find, names, pod_of
from tests.k8s.manifests import problems
from tests.k8s.rendering import Combination, Document

ROOT = Path(__file__).parents[2]
OF_EACH_SERVICE = ("ConfigMap", "Service", "Deployment", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy")


@pytest.fixture
def documents(fresh: Fresh) -> list[Document]:
    return fresh(Combination("base"))


def test_nothing_is_wrong(documents: list[Document]) -> None:
    assert problems(documents) == []


def test_each_service_has_one_of_each_kind_and_there_is_little_else(documents: list[Document]) -> None:
    expected = [find(documents, kind, name) for name in SERVICES for kind in OF_EACH_SERVICE]
    others = {"specdec-default-deny", "specdec-dns-and-telemetry", "specdec-metrics"}
    assert names(documents, "NetworkPolicy") == {f"specdec-{name}" for name in SERVICES} | others
    assert len(documents) == len(expected) + len(others)
    assert all("namespace" not in document["metadata"] for document in documents)


def test_images_and_labels_carry_the_version_of_the_project(documents: list[Document]) -> None:
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    version = declared[1]
    for component in SERVICES:
        (container,) = pod_of(documents, component).containers
        assert container["image"] == f"specdec-{component}:{version}"
    assert {document["metadata"]["labels"]["app.kubernetes.io/version"] for document in documents} == {version}


def test_an_update_never_takes_the_last_replica_away(documents: list[Document]) -> None:
    for component in SERVICES:
        strategy = find(documents, "Deployment", component)["spec"]["strategy"]
        assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

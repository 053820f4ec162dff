"""Every base and overlay with every set of components: it renders, it is valid, and nothing is wrong in it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec.telemetry.variables import read_switches
from target_service.settings import TargetSettings
from tests.k8s.conftest import Fresh
from tests.k8s.documents import SERVICES, find, of_kind, pod_of, pods
from tests.k8s.manifests import expected_problems, problems, settings_of
from tests.k8s.rendering import BASES, COMPONENTS, K8S, Combination, Document, render
from tests.k8s.validation import VERSIONS, validation_problems

Rendered = dict[Combination, list[Document]]


def test_every_directory_is_in_some_combination() -> None:
    assert sorted(path.name for path in (K8S / "components").iterdir()) == sorted(COMPONENTS)
    overlays = [f"overlays/{path.name}" for path in sorted((K8S / "overlays").iterdir())]
    assert ["base", *overlays] == sorted(BASES)


def test_nothing_is_wrong(every_combination: Rendered) -> None:
    for combination, documents in every_combination.items():
        assert problems(documents) == expected_problems(combination), combination.name


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_is_valid_strictly(every_combination: Rendered, version: str) -> None:
    assert list(validation_problems(itertools.chain.from_iterable(every_combination.values()), version)) == []


def test_a_field_or_a_kind_that_kubernetes_does_not_know_is_invalid(fresh: Fresh) -> None:
    documents = fresh(Combination("base"))
    pod_of(documents, "target").spec["restartPolici"] = "Always"
    find(documents, "Service", "draft")["kind"] = "Servise"
    first, second = sorted(validation_problems(documents, "1.32"))
    assert first.startswith("Deployment specdec-target (Kubernetes 1.32)")
    assert "restartPolici" in first
    assert second.startswith("Servise specdec-draft (Kubernetes 1.32)")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d["spec"].update(podMetricsEndpoint=[]), "podMetricsEndpoint: Extra inputs"),
        (lambda d: d["spec"].pop("podMetricsEndpoints"), "podMetricsEndpoints: Field required"),
        (lambda d: d["spec"]["podMetricsEndpoints"][0].update(port=9464), "podMetricsEndpoints.0.port"),
        (lambda d: d.update(kind="PodMonitr"), "no resource of the Prometheus operator"),
        (lambda d: d.update(apiVersion="monitoring.coreos.com/v2"), "no resource of the Prometheus operator"),
    ],
)
def test_a_slip_in_what_the_prometheus_operator_reads_is_noticed(
    fresh: Fresh, change: Callable[[Document], object], problem: str
) -> None:
    documents = fresh(Combination("base", ("monitoring-operator",)))
    (monitor,) = of_kind(documents, "PodMonitor")
    change(monitor)
    assert any(problem in found for found in validation_problems(documents, VERSIONS[0]))


def test_no_two_documents_have_one_name(every_combination: Rendered) -> None:
    for combination, documents in every_combination.items():
        keys = [(document["kind"], document["metadata"]["name"]) for document in documents]
        assert len(set(keys)) == len(keys), combination.name


def test_documents_say_that_they_are_part_of_it(every_combination: Rendered) -> None:
    for documents in every_combination.values():
        assert {document["metadata"]["labels"]["app.kubernetes.io/name"] for document in documents} == {"specdec"}


def test_telemetry_variables_are_well_formed(every_combination: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    for component in SERVICES:
        documents = every_combination[Combination("base", ("otel-collector",))]
        for name, value in find(documents, "ConfigMap", component)["data"].items():
            if name.startswith("OTEL_"):
                monkeypatch.setenv(name, value)
        assert read_switches().has_traces


def test_the_example_of_the_readme_renders(tmp_path: Path) -> None:
    text = (K8S / "README.md").read_text(encoding="utf-8")
    example = text.partition("```yaml\n")[2].partition("```")[0]
    way = os.path.relpath(K8S.parent.resolve(), tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(example.replace("REPOSITORY", way), encoding="utf-8")
    documents = render(tmp_path)
    for document in documents:
        assert document["metadata"].pop("namespace") == "specdec"
    assert problems(documents) == []
    images = {container["image"] for pod in pods(documents) for container in pod.containers}
    assert {image.rpartition("/")[0] for image in images} == {"registry.example"}
    target = settings_of(documents, "target")
    assert isinstance(target, TargetSettings)
    assert target.max_num_sequences == 32

"""A slip in the manifests is noticed by the checks that all combinations pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.k8s.conftest import Fresh
from tests.k8s.documents import find, of_kind, pod_of
from tests.k8s.manifests import problems
from tests.k8s.rendering import COMPONENTS, Combination, Document

Change = Callable[[list[Document]], object]


def pod(documents: list[Document], component: str) -> Document:
    return pod_of(documents, component).spec


def container(documents: list[Document], component: str) -> Document:
    (only,) = pod(documents, component)["containers"]
    assert isinstance(only, dict)
    return only


def settings(documents: list[Document], component: str) -> dict[str, str]:
    data: dict[str, str] = find(documents, "ConfigMap", component)["data"]
    return data


def deployment(documents: list[Document], component: str) -> Document:
    spec: Document = find(documents, "Deployment", component)["spec"]
    return spec


def service(documents: list[Document], component: str) -> Document:
    spec: Document = find(documents, "Service", component)["spec"]
    return spec


def monitor(documents: list[Document]) -> Document:
    (document,) = of_kind(documents, "PodMonitor")
    spec: Document = document["spec"]
    return spec


def drop(documents: list[Document], kind: str, name: str) -> None:
    (document,) = (each for each in of_kind(documents, kind) if each["metadata"]["name"] == name)
    documents.remove(document)


def misspell_a_setting(documents: list[Document]) -> None:
    values = settings(documents, "target")
    values["SPECDEC_TARGET_MODLE"] = values.pop("SPECDEC_TARGET_MODEL")


def drop_the_policies_of(documents: list[Document], kind: str) -> None:
    for policy in of_kind(documents, "NetworkPolicy"):
        policy["spec"]["policyTypes"] = [each for each in policy["spec"]["policyTypes"] if each != kind]


OF_THE_BASE: list[tuple[Change, str]] = [
    # Selectors and names.
    (
        lambda d: deployment(d, "draft")["selector"]["matchLabels"].update(app="x"),
        "does not match the labels of its pods",
    ),
    (
        lambda d: service(d, "draft")["selector"].update(app="x"),
        "Service specdec-draft: the selector matches the pods of 0",
    ),
    (lambda d: service(d, "draft")["selector"].pop("app.kubernetes.io/component"), "matches the pods of 3 workloads"),
    (lambda d: service(d, "target").pop("clusterIP"), "is not headless"),
    (lambda d: service(d, "target")["ports"][0].update(targetPort="http"), "leads to http, which the pods do not"),
    (lambda d: service(d, "orchestrator")["ports"][0].update(port=80), "cannot map port 80"),
    (lambda d: find(d, "PodDisruptionBudget", "draft")["spec"]["selector"].clear(), "matches the pods of 3 workloads"),
    (lambda d: drop(d, "PodDisruptionBudget", "specdec-draft"), "it has 0 disruption budgets"),
    (lambda d: drop(d, "ServiceAccount", "specdec-target"), "there is no service account specdec-target"),
    (
        lambda d: find(d, "NetworkPolicy", "draft")["spec"]["podSelector"]["matchLabels"].update(app="x"),
        "selects no pod",
    ),
    (lambda d: drop_the_policies_of(d, "Egress"), "specdec-target: no network policy closes it"),
    (lambda d: drop_the_policies_of(d, "Ingress"), "specdec-draft: no network policy closes it"),
    # Settings.
    (misspell_a_setting, "TargetSettings reads no SPECDEC_TARGET_MODLE"),
    (lambda d: settings(d, "draft").update(SPECDEC_DRAFT_MAX_NUM_SEQUENCES="0"), "max_num_sequences"),
    (lambda d: settings(d, "draft").update(OTEL_TRACES_SAMPLR="always_on"), "reads no OTEL_TRACES_SAMPLR"),
    (
        lambda d: settings(d, "orchestrator").update(SPECDEC_ORCHESTRATOR_TARGET="dns:///target:50052"),
        "is not the address of the target service",
    ),
    (lambda d: settings(d, "target").update(SPECDEC_TARGET_PORT="50053"), "the container declares"),
    (lambda d: settings(d, "target").update(SPECDEC_TARGET_METRICS_PORT="9000"), "the container declares"),
    (lambda d: settings(d, "target").update(SPECDEC_TARGET_HOST="127.0.0.1"), "which no other pod reaches"),
    (lambda d: settings(d, "draft").pop("SPECDEC_DRAFT_INSECURE_BIND"), "it will not start"),
    (lambda d: container(d, "target")["envFrom"][0]["configMapRef"].update(name="other"), "its settings are in"),
    (
        lambda d: container(d, "target")["envFrom"][0]["configMapRef"].update(name="other"),
        "there is no ConfigMap other",
    ),
    # Probes and the end.
    (lambda d: container(d, "draft").pop("startupProbe"), "the startupProbe is missing"),
    (lambda d: container(d, "orchestrator").pop("readinessProbe"), "the readinessProbe is missing"),
    (lambda d: container(d, "target").pop("livenessProbe"), "the livenessProbe is missing"),
    (lambda d: container(d, "target")["livenessProbe"]["grpc"].update(port=1), "the livenessProbe does not ask"),
    (lambda d: container(d, "target")["livenessProbe"]["grpc"].update(port=1), "asks port 1, which is not declared"),
    (lambda d: container(d, "target")["livenessProbe"]["grpc"].pop("service"), "the livenessProbe does not ask"),
    (lambda d: container(d, "target")["readinessProbe"].pop("grpc"), "the readinessProbe does not ask"),
    (lambda d: container(d, "target")["startupProbe"].update(failureThreshold=3), "gives up after"),
    (lambda d: settings(d, "draft").update(SPECDEC_DRAFT_DRAIN_SECONDS="60"), "an orderly end takes up to"),
    (lambda d: pod(d, "target").update(terminationGracePeriodSeconds=30), "an orderly end takes up to"),
    (lambda d: container(d, "target").pop("lifecycle"), "there is no preStop"),
    (lambda d: deployment(d, "target")["strategy"]["rollingUpdate"].update(maxUnavailable=1), "the last replica away"),
    # The pod.
    (lambda d: container(d, "target")["resources"]["limits"].pop("memory"), "its limits name no cpu or no memory"),
    (lambda d: container(d, "target").pop("resources"), "its requests name no cpu or no memory"),
    (lambda d: pod(d, "draft").pop("topologySpreadConstraints"), "may all be on one node"),
    (
        lambda d: pod(d, "draft")["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].update(app="x"),
        "spread by a selector that does not match them",
    ),
    (lambda d: pod(d, "target")["securityContext"].update(runAsUser=0), "it may run as root"),
    (lambda d: pod(d, "draft")["securityContext"].pop("runAsNonRoot"), "it may run as root"),
    (lambda d: container(d, "draft")["securityContext"].update(runAsUser=0), "it may run as root"),
    (lambda d: pod(d, "draft")["securityContext"].pop("seccompProfile"), "seccomp"),
    (lambda d: container(d, "draft")["securityContext"].pop("capabilities"), "keeps capabilities"),
    (lambda d: container(d, "draft")["securityContext"].pop("readOnlyRootFilesystem"), "is writable"),
    (lambda d: container(d, "draft")["securityContext"].pop("allowPrivilegeEscalation"), "gain privileges"),
    (lambda d: pod(d, "draft").update(hostNetwork=True), "shares a namespace with its node"),
    (lambda d: pod(d, "orchestrator").pop("enableServiceLinks"), "would be read as settings"),
    (lambda d: pod(d, "orchestrator").pop("automountServiceAccountToken"), "a token of the cluster"),
    (lambda d: pod(d, "orchestrator").pop("serviceAccountName"), "under the service account of the namespace"),
    (lambda d: container(d, "draft").update(image="specdec-draft:latest"), "has no tag that stays"),
    (lambda d: container(d, "draft").update(image="registry:5000/specdec-draft"), "has no tag that stays"),
    (lambda d: container(d, "target")["volumeMounts"].pop(), "and mounts"),
    (lambda d: container(d, "target")["env"][0].update(value="/cache"), "which is on no volume"),
    (lambda d: pod(d, "target")["volumes"][0].update(emptyDir={}), "may fill its node"),
]

OF_COMPONENTS: list[tuple[Change, str]] = [
    (
        lambda d: container(d, "otel-collector").pop("livenessProbe"),
        "specdec-otel-collector: the livenessProbe is missing",
    ),
    (lambda d: container(d, "otel-collector")["livenessProbe"]["httpGet"].update(port="web"), "asks port web"),
    (
        lambda d: pod(d, "model-cache")["securityContext"].update(runAsUser=0),
        "specdec-fetch-models: it may run as root",
    ),
    (lambda d: pod(d, "draft")["initContainers"][0].pop("resources"), "its limits name no cpu"),
    (
        lambda d: pod(d, "draft")["initContainers"][0]["env"][0]["valueFrom"]["configMapKeyRef"].update(key="X"),
        "has no X",
    ),
    (lambda d: drop(d, "PersistentVolumeClaim", "specdec-models"), "there is no PersistentVolumeClaim specdec-models"),
    (lambda d: drop(d, "Certificate", "specdec-target"), "nothing makes the Secret specdec-target-tls"),
    (lambda d: drop(d, "Issuer", "specdec-clients"), "there is no Issuer specdec-clients"),
    (lambda d: drop(d, "Certificate", "specdec-services-authority"), "of the Issuer specdec-services"),
    (
        lambda d: settings(d, "target").update(SPECDEC_TARGET_ALLOWED_PEERS="orchestrator"),
        "none of the names that the target service lets in",
    ),
    (
        lambda d: find(d, "Certificate", "draft")["spec"].update(dnsNames=["draft"]),
        "the certificate of the draft service does not hold the name it is called by",
    ),
    (lambda d: settings(d, "draft").update(SPECDEC_DRAFT_TLS_CERT="/etc/tls.crt"), "where nothing is mounted"),
    (lambda d: settings(d, "orchestrator").pop("SPECDEC_ORCHESTRATOR_TLS_CA"), "do not agree on TLS"),
    (lambda d: container(d, "target")["readinessProbe"]["grpc"].update(port=50052), "the readinessProbe does not ask"),
    (lambda d: settings(d, "target").pop("SPECDEC_TARGET_HEALTH_PORT"), "the container declares"),
    (lambda d: deployment(d, "target").update(replicas=1), "sets its replicas, and an autoscaler does too"),
    (
        lambda d: monitor(d)["podMetricsEndpoints"][0].update(port="http"),
        "it asks specdec-draft at ['http'], which it does not declare",
    ),
    (
        lambda d: monitor(d)["selector"]["matchExpressions"][0]["values"].remove("otel-collector"),
        "it passes over specdec-otel-collector",
    ),
    (lambda d: monitor(d)["selector"].pop("matchExpressions"), "it selects specdec-fetch-models"),
    (
        lambda d: find(d, "HorizontalPodAutoscaler", "draft")["spec"]["scaleTargetRef"].update(name="draft"),
        "scales draft, which is not there",
    ),
]


OF_THE_GPU_OVERLAY: list[tuple[Change, str]] = [
    (
        lambda d: settings(d, "target").update(SPECDEC_TARGET_DEVICE="cuda"),
        "its device is cuda and it is given 2 GPUs",
    ),
    (
        lambda d: container(d, "target")["resources"]["limits"].update({"nvidia.com/gpu": 1}),
        "its device is cuda:0,cuda:1 and it is given 1 GPUs",
    ),
    (lambda d: container(d, "draft")["resources"]["limits"].pop("nvidia.com/gpu"), "it is given 0 GPUs"),
    (lambda d: settings(d, "draft").update(SPECDEC_DRAFT_DEVICE="cpu"), "its device is cpu and it is given 1 GPUs"),
]


@pytest.mark.parametrize(("change", "problem"), OF_THE_BASE)
def test_a_slip_in_the_base_is_noticed(fresh: Fresh, change: Change, problem: str) -> None:
    documents = fresh(Combination("base"))
    change(documents)
    assert any(problem in found for found in problems(documents)), problems(documents)


@pytest.mark.parametrize(("change", "problem"), OF_COMPONENTS)
def test_a_slip_in_a_component_is_noticed(fresh: Fresh, change: Change, problem: str) -> None:
    documents = fresh(Combination("overlays/cpu", COMPONENTS))
    change(documents)
    assert any(problem in found for found in problems(documents)), problems(documents)


@pytest.mark.parametrize(("change", "problem"), OF_THE_GPU_OVERLAY)
def test_a_slip_in_the_gpu_overlay_is_noticed(fresh: Fresh, change: Change, problem: str) -> None:
    documents = fresh(Combination("overlays/gpu"))
    change(documents)
    assert any(problem in found for found in problems(documents)), problems(documents)

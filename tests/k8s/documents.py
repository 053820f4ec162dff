"""Looking things up in rendered manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.k8s.rendering import Document

SERVICES = ("draft", "target", "orchestrator")
COMPONENT_LABEL = "app.kubernetes.io/component"


@dataclass(frozen=True)
class Pod:
    """The pods of a Deployment or Job."""

    workload: Document
    labels: Mapping[str, str]
    spec: Document

    @property
    def name(self) -> str:
        """Of the workload."""
        return str(self.workload["metadata"]["name"])

    @property
    def component(self) -> str:
        """What they are, by their label."""
        return self.labels[COMPONENT_LABEL]

    @property
    def containers(self) -> list[Document]:
        """Those that run first, then the others."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        """Numbers by name."""
        return {port["name"]: port["containerPort"] for each in self.containers for port in each.get("ports", [])}


def find(documents: list[Document], kind: str, component: str) -> Document:
    """The one document of that kind for a component.

    Raises:
        LookupError: there is none, or more than one.
    """
    name = f"specdec-{component}"
    found = [
        document
        for document in of_kind(documents, kind)
        # The ConfigMap's name ends in a hash of its content.
        if document["metadata"]["name"] == name or (kind == "ConfigMap" and _is_generated(document, name))
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} documents of kind {kind} for {component}")
    return found[0]


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    """All documents of a kind."""
    return [document for document in documents if document["kind"] == kind]


def names(documents: list[Document], kind: str) -> set[str]:
    """Names of all documents of a kind."""
    return {document["metadata"]["name"] for document in of_kind(documents, kind)}


def pods(documents: list[Document]) -> Iterator[Pod]:
    """Of every workload."""
    for kind in ("Deployment", "Job"):
        for workload in of_kind(documents, kind):
            template = workload["spec"]["template"]
            yield Pod(workload, template["metadata"]["labels"], template["spec"])


def pod_of(documents: list[Document], component: str) -> Pod:
    """The one workload of a component.

    Raises:
        LookupError: there is none, or more than one.
    """
    found = [pod for pod in pods(documents) if pod.component == component]
    if len(found) != 1:
        raise LookupError(f"{len(found)} workloads for {component}")
    return found[0]


def matches(selector: Document, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects something with these labels; an empty one selects everything.

    Raises:
        ValueError: an operator that is not used here.
    """
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    for expression in selector.get("matchExpressions", []):
        if expression["operator"] != "In":
            raise ValueError(f"the operator {expression['operator']} is not known")
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True


def _is_generated(document: Document, name: str) -> bool:
    return str(document["metadata"]["name"]).rpartition("-")[0] == name

"""Who reaches whom by the network policies, as Kubernetes reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from tests.k8s.documents import Pod, matches, of_kind
from tests.k8s.rendering import Document

_NAMESPACE = "specdec-test"


@dataclass(frozen=True)
class End:
    """One end of a connection: a pod, or an address outside the cluster."""

    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = _NAMESPACE
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    """Of an end that is no pod."""


OUTSIDE = End(namespace="", address="93.184.216.34")
"""Somewhere on the internet."""


def end_of(pod: Pod) -> End:
    """A pod of the manifests."""
    return End(pod.labels)


def reaches(documents: list[Document], start: End, end: End, port: int, *, protocol: str = "TCP") -> bool:
    """Whether a connection is let out at one end and in at the other."""
    return _allows(documents, "Egress", start, end, port, protocol) and _allows(
        documents, "Ingress", end, start, port, protocol
    )


def is_covered(documents: list[Document], pod: Pod) -> bool:
    """Whether policies close a pod in both directions, but for what they open."""
    return all(_policies(documents, way, end_of(pod)) for way in ("Ingress", "Egress"))


def _allows(documents: list[Document], way: str, here: End, there: End, port: int, protocol: str) -> bool:
    policies = _policies(documents, way, here)
    if not policies:
        return True
    peers, rules_of = ("to", "egress") if way == "Egress" else ("from", "ingress")
    return any(
        _opens(rule.get("ports", []), port, protocol) and _admits(rule.get(peers, []), there)
        for policy in policies
        for rule in policy["spec"].get(rules_of, [])
    )


def _policies(documents: list[Document], way: str, end: End) -> list[Document]:
    if end.namespace != _NAMESPACE:
        return []
    return [
        policy
        for policy in of_kind(documents, "NetworkPolicy")
        if way in policy["spec"]["policyTypes"] and matches(policy["spec"]["podSelector"], end.labels)
    ]


def _opens(ports: list[Document], port: int, protocol: str) -> bool:
    return not ports or any(entry["port"] == port and entry["protocol"] == protocol for entry in ports)


def _admits(peers: list[Document], end: End) -> bool:
    return not peers or any(_is(peer, end) for peer in peers)


def _is(peer: Document, end: End) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        networks = [ip_network(each) for each in (block["cidr"], *block.get("except", []))]
        return bool(end.address) and [ip_address(end.address) in each for each in networks] == [
            True,
            *[False] * (len(networks) - 1),
        ]
    if end.address:
        return False
    if "namespaceSelector" in peer:
        if not matches(peer["namespaceSelector"], end.namespace_labels):
            return False
    elif end.namespace != _NAMESPACE:
        return False
    return matches(peer.get("podSelector", {}), end.labels)

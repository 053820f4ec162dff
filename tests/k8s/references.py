"""Names in one document that must be there in another one."""

from __future__ import annotations

from collections.abc import Iterator

from tests.k8s.documents import Pod, matches, names, of_kind, pods
from tests.k8s.rendering import Document

_PROBE_KINDS = ("grpc", "httpGet")


def reference_problems(documents: list[Document]) -> Iterator[str]:
    """Every name that leads nowhere, and every selector that selects the wrong pods; a sentence each."""
    all_pods = list(pods(documents))
    for pod in all_pods:
        for problem in (*_pod_problems(documents, pod), *_probe_problems(pod)):
            yield f"{pod.name}: {problem}"
    for document in documents:
        for problem in _selector_problems(document, all_pods):
            yield f"{document['kind']} {document['metadata']['name']}: {problem}"
    yield from _scaling_problems(documents)
    yield from _certificate_problems(documents)


def _pod_problems(documents: list[Document], pod: Pod) -> Iterator[str]:
    account = pod.spec.get("serviceAccountName")
    if account not in names(documents, "ServiceAccount"):
        yield f"there is no service account {account}"
    config_maps = {each["metadata"]["name"]: each["data"] for each in of_kind(documents, "ConfigMap")}
    for container in pod.containers:
        for source in container.get("envFrom", []):
            if source["configMapRef"]["name"] not in config_maps:
                yield f"there is no ConfigMap {source['configMapRef']['name']}"
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("configMapKeyRef")
            if reference is not None and reference["key"] not in config_maps.get(reference["name"], {}):
                yield f"the ConfigMap {reference['name']} has no {reference['key']}"
    secrets = {each["spec"]["secretName"] for each in of_kind(documents, "Certificate")}
    for volume in pod.spec.get("volumes", []):
        if "configMap" in volume and volume["configMap"]["name"] not in config_maps:
            yield f"there is no ConfigMap {volume['configMap']['name']}"
        secret = volume.get("secret", {"optional": True})
        if not secret.get("optional") and secret["secretName"] not in secrets:
            yield f"nothing makes the Secret {volume['secret']['secretName']}"
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim is not None and claim not in names(documents, "PersistentVolumeClaim"):
            yield f"there is no PersistentVolumeClaim {claim}"


def _probe_problems(pod: Pod) -> Iterator[str]:
    for container in pod.spec["containers"]:
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            for kind in _PROBE_KINDS:
                port = container.get(name, {}).get(kind, {}).get("port")
                if port is not None and port not in ports and port not in ports.values():
                    yield f"the {name} asks port {port}, which is not declared"


def _selector_problems(document: Document, all_pods: list[Pod]) -> Iterator[str]:
    spec = document.get("spec", {})
    if document["kind"] == "Deployment":
        template = spec["template"]["metadata"]["labels"]
        if not matches(spec["selector"], template):
            yield "the selector does not match the labels of its pods"
        for constraint in spec["template"]["spec"].get("topologySpreadConstraints", []):
            if not matches(constraint["labelSelector"], template):
                yield "the pods are spread by a selector that does not match them"
        selector = spec["selector"]
    elif document["kind"] == "Service":
        selector = {"matchLabels": spec["selector"]}
    elif document["kind"] == "PodDisruptionBudget":
        selector = spec["selector"]
    elif document["kind"] == "PodMonitor":
        yield from _monitor_problems(spec, all_pods)
        return
    elif document["kind"] == "NetworkPolicy":
        if not any(matches(spec["podSelector"], pod.labels) for pod in all_pods):
            yield "it selects no pod"
        return
    else:
        return
    selected = [pod for pod in all_pods if matches(selector, pod.labels)]
    if len(selected) != 1:
        yield f"the selector matches the pods of {len(selected)} workloads"
        return
    if document["kind"] == "Service":
        ports = selected[0].ports
        for entry in spec["ports"]:
            if entry["targetPort"] not in ports and entry["targetPort"] not in ports.values():
                yield f"port {entry['port']} leads to {entry['targetPort']}, which the pods do not declare"


def _monitor_problems(spec: Document, all_pods: list[Pod]) -> Iterator[str]:
    """Pods with metrics must be selected, and each that is must have the ports that are asked for."""
    ports = {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]}
    for pod in all_pods:
        is_selected = matches(spec["selector"], pod.labels)
        if is_selected != ("metrics" in pod.ports):
            yield f"it {'selects' if is_selected else 'passes over'} {pod.name}, with the ports {sorted(pod.ports)}"
        elif is_selected and not ports <= pod.ports.keys():
            yield f"it asks {pod.name} at {sorted(ports - pod.ports.keys())}, which it does not declare"


def _scaling_problems(documents: list[Document]) -> Iterator[str]:
    deployments = {each["metadata"]["name"]: each for each in of_kind(documents, "Deployment")}
    for autoscaler in of_kind(documents, "HorizontalPodAutoscaler"):
        name = autoscaler["spec"]["scaleTargetRef"]["name"]
        if name not in deployments:
            yield f"the autoscaler {autoscaler['metadata']['name']} scales {name}, which is not there"
        elif "replicas" in deployments[name]["spec"]:
            yield f"{name} sets its replicas, and an autoscaler does too"


def _certificate_problems(documents: list[Document]) -> Iterator[str]:
    issuers = names(documents, "Issuer")
    secrets = {each["spec"]["secretName"] for each in of_kind(documents, "Certificate")}
    for certificate in of_kind(documents, "Certificate"):
        if certificate["spec"]["issuerRef"]["name"] not in issuers:
            yield f"there is no Issuer {certificate['spec']['issuerRef']['name']}"
    for issuer in of_kind(documents, "Issuer"):
        secret = issuer["spec"].get("ca", {}).get("secretName")
        if secret is not None and secret not in secrets:
            yield f"nothing makes the Secret {secret} of the Issuer {issuer['metadata']['name']}"

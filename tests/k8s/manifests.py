"""Rendered manifests, and what must hold between them: a schema sees one resource at a time and no references."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from draft_service.settings import DraftSettings
from orchestrator.settings import OrchestratorSettings
from specdec.serving.health import LIVENESS_NAME
from specdec.serving.host import CLOSE_SECONDS, STOP_GRACE_SECONDS
from specdec.serving.process import EXIT_SECONDS, FLUSH_SECONDS
from specdec.settings import ServiceSettings
from target_service.settings import TargetSettings

Document = dict[str, Any]

SETTINGS: Mapping[str, type[ServiceSettings]] = {
    "draft": DraftSettings,
    "target": TargetSettings,
    "orchestrator": OrchestratorSettings,
}
STARTED_WHEN = {"draft": "", "target": "", "orchestrator": LIVENESS_NAME}
"""Health name of the startup probe: "" is readiness, and the orchestrator's hangs on the target and not on itself."""
CLOSING_SECONDS = STOP_GRACE_SECONDS + 2 * CLOSE_SECONDS + FLUSH_SECONDS + EXIT_SECONDS
"""What a service may take after its drain: to close connections and hand over the last telemetry."""
STARTUP_SECONDS = {"draft": 300, "target": 300, "orchestrator": 30}
"""What a start may take at least; a target fetches and converts its model first."""


def render(directory: Path) -> list[Document]:
    """The documents that kustomize makes of a directory."""
    search_path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    kubectl = shutil.which("kubectl", path=search_path)
    assert kubectl is not None, "kubectl is missing; run `make setup`"
    done = subprocess.run(
        [kubectl, "kustomize", str(directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def find(documents: list[Document], kind: str, component: str) -> Document:
    """The one document of that kind for a component.

    Raises:
        LookupError: there is none, or more than one.
    """
    name = f"specdec-{component}"
    found = [
        document
        for document in documents
        if document["kind"] == kind
        # The ConfigMap's name ends in a hash of its content.
        and (document["metadata"]["name"] == name or (kind == "ConfigMap" and _is_generated(document, name)))
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} documents of kind {kind} for {component}")
    return found[0]


def problems(documents: list[Document]) -> list[str]:
    """Everything that is wrong between the documents and with the settings they carry; a sentence each."""
    return [
        f"{component}: {problem}" for component in SETTINGS for problem in _problems_of_component(documents, component)
    ]


def _is_generated(document: Document, name: str) -> bool:
    return str(document["metadata"]["name"]).rpartition("-")[0] == name


def _problems_of_component(documents: list[Document], component: str) -> Iterator[str]:
    deployment = find(documents, "Deployment", component)["spec"]
    service = find(documents, "Service", component)["spec"]
    config_map = find(documents, "ConfigMap", component)
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]

    yield from _selector_problems(deployment, service)
    sources = [source["configMapRef"]["name"] for source in container["envFrom"]]
    if sources != [config_map["metadata"]["name"]]:
        yield f"the container reads {sources} and its settings are in {config_map['metadata']['name']}"

    settings_class = SETTINGS[component]
    try:
        settings = _settings(settings_class, config_map["data"])
    except (ValidationError, LookupError) as error:
        yield str(error)
        return
    if settings.host != "0.0.0.0":  # noqa: S104
        yield f"it listens on {settings.host}, which no other pod reaches"
    elif settings.tls_cert is None and not settings.insecure_bind:
        yield "it listens in plaintext without insecure_bind, so it will not start"
    yield from _port_problems(service, container, settings.port)
    yield from _probe_problems(container, settings.port, component)
    yield from _shutdown_problems(pod, container, settings.drain_seconds)
    yield from _security_problems(pod, container)
    yield from _volume_problems(pod, container)
    if isinstance(settings, OrchestratorSettings):
        for peer, address in (("target", settings.target), ("draft", settings.draft)):
            port = find(documents, "Service", peer)["spec"]["ports"][0]["port"]
            if address != f"dns:///specdec-{peer}:{port}":
                yield f"{address} is not the address of the {peer} service"


def _selector_problems(deployment: Document, service: Document) -> Iterator[str]:
    labels = deployment["template"]["metadata"]["labels"]
    for name, selector in (("deployment", deployment["selector"]["matchLabels"]), ("service", service["selector"])):
        if not selector.items() <= labels.items():
            yield f"the selector of the {name} does not match the labels of the pods"
        if not {"app.kubernetes.io/name", "app.kubernetes.io/component"} <= selector.keys():
            yield f"the selector of the {name} matches pods of other components"
    if service.get("clusterIP") != "None":
        yield "the service is not headless, so all streams stick to one pod"


def _settings(settings_class: type[ServiceSettings], data: Mapping[str, str]) -> ServiceSettings:
    """The settings that a process reads from these variables; a variable that it would not read is refused."""
    prefix = str(settings_class.model_config["env_prefix"])
    fields = {f"{prefix}{name.upper()}": name for name in settings_class.model_fields}
    unknown = sorted(data.keys() - fields.keys())
    if unknown:
        raise LookupError(f"{settings_class.__name__} reads no {', '.join(unknown)}")
    return settings_class.model_validate({fields[variable]: value for variable, value in data.items()})


def _port_problems(service: Document, container: Document, port: int) -> Iterator[str]:
    ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
    if port not in ports.values():
        yield f"it listens on {port} and the container declares {sorted(ports.values())}"
    for entry in service["ports"]:
        target = entry["targetPort"]
        number = ports.get(target) if isinstance(target, str) else target
        if number != port:
            yield f"port {entry['port']} of the service leads to {target}, not to {port}"
        if entry["port"] != port:
            yield f"a headless service cannot map port {entry['port']} to {port}"


def _probe_problems(container: Document, port: int, component: str) -> Iterator[str]:
    health_names = {
        "startupProbe": STARTED_WHEN[component],
        "readinessProbe": "",
        "livenessProbe": LIVENESS_NAME,
    }
    for name, health_name in health_names.items():
        probe = container.get(name)
        if probe is None:
            yield f"the {name} is missing"
        elif {"service": "", **probe.get("grpc", {})} != {"port": port, "service": health_name}:
            yield f"the {name} does not ask for the health of {health_name!r} on {port}"
    startup = container.get("startupProbe", {})
    allowed = startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3)
    if allowed < STARTUP_SECONDS[component]:
        yield f"the startupProbe gives up after {allowed} s and a start takes up to {STARTUP_SECONDS[component]} s"


def _shutdown_problems(pod: Document, container: Document, drain_seconds: float) -> Iterator[str]:
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = pause + drain_seconds + CLOSING_SECONDS
    grace = pod["terminationGracePeriodSeconds"]
    if grace < needed:
        yield f"terminationGracePeriodSeconds is {grace} and an orderly end takes up to {needed:g} s"


def _security_problems(pod: Document, container: Document) -> Iterator[str]:
    of_pod, of_container = pod["securityContext"], container["securityContext"]
    user = of_container.get("runAsUser", of_pod.get("runAsUser"))
    if not user or not of_container.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
        yield f"it may run as root (user {user})"
    if of_pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "the seccomp profile is not RuntimeDefault"
    if of_container.get("allowPrivilegeEscalation") is not False or of_container.get("privileged"):
        yield "it may gain privileges"
    if of_container.get("readOnlyRootFilesystem") is not True:
        yield "its root file system is writable"
    if of_container.get("capabilities") != {"drop": ["ALL"]}:
        yield "it keeps capabilities"
    if pod.get("enableServiceLinks") is not False:
        yield "variables of the namespace's services would be read as settings"
    if pod.get("automountServiceAccountToken") is not False:
        yield "it carries a token of the cluster that it does not need"
    for bound in ("requests", "limits"):
        if not {"cpu", "memory"} <= container["resources"][bound].keys():
            yield f"its {bound} name no cpu or no memory"


def _volume_problems(pod: Document, container: Document) -> Iterator[str]:
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    if volumes != mounts.keys():
        yield f"it has the volumes {sorted(volumes)} and mounts {sorted(mounts)}"
    if "/tmp" not in mounts.values():  # noqa: S108
        yield "nothing is writable under /tmp"
    for variable in container.get("env", []):
        if not any(Path(variable["value"]).is_relative_to(mount) for mount in mounts.values()):
            yield f"{variable['name']} names {variable['value']}, which is on no writable volume"

"""What must hold between rendered manifests: a schema sees one resource at a time and no references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from draft_service.settings import DraftSettings
from orchestrator.settings import OrchestratorSettings
from specdec.serving.health import LIVENESS_NAME
from specdec.serving.host import CLOSE_SECONDS, STOP_GRACE_SECONDS
from specdec.serving.process import EXIT_SECONDS, FLUSH_SECONDS
from specdec.settings import ModelServiceSettings, ServiceSettings
from specdec.telemetry.variables import CHECKED_VARIABLES
from target_service.settings import TargetSettings
from tests.k8s.documents import SERVICES, Pod, find, of_kind, pod_of, pods
from tests.k8s.pod_policies import pod_problems
from tests.k8s.reachability import is_covered
from tests.k8s.references import reference_problems
from tests.k8s.rendering import Combination, Document

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


def problems(documents: list[Document]) -> list[str]:
    """Everything that is wrong between the documents and with the settings they carry; a sentence each."""
    found = list(reference_problems(documents))
    for pod in pods(documents):
        found += [f"{pod.name}: {problem}" for problem in pod_problems(pod)]
        if not is_covered(documents, pod):
            found.append(f"{pod.name}: no network policy closes it")
    for component in SERVICES:
        found += [f"{component}: {problem}" for problem in _problems_of_service(documents, component)]
    return found


def expected_problems(combination: Combination) -> list[str]:
    """What is wrong with a combination on purpose."""
    # With a door to the outside and without certificates it would serve whoever finds it, so it is made not to start.
    is_unprotected = "gateway" in combination.components and "tls" not in combination.components
    return ["orchestrator: it listens in plaintext without insecure_bind, so it will not start"] * is_unprotected


def settings_of(documents: list[Document], component: str) -> ServiceSettings:
    """The settings that a service reads from its ConfigMap.

    Raises:
        LookupError: it would not read one of the variables.
        ValidationError: a value is not possible.
    """
    settings_class = SETTINGS[component]
    prefix = str(settings_class.model_config["env_prefix"])
    fields = {f"{prefix}{name.upper()}": name for name in settings_class.model_fields}
    data = find(documents, "ConfigMap", component)["data"]
    others = {variable: value for variable, value in data.items() if variable not in fields}
    unknown = sorted(others.keys() - CHECKED_VARIABLES)
    if unknown:
        raise LookupError(f"{settings_class.__name__} reads no {', '.join(unknown)}")
    return settings_class.model_validate({fields[name]: value for name, value in data.items() if name in fields})


def _problems_of_service(documents: list[Document], component: str) -> Iterator[str]:
    pod = pod_of(documents, component)
    service = find(documents, "Service", component)["spec"]
    config_map = find(documents, "ConfigMap", component)
    (container,) = pod.spec["containers"]

    if service.get("clusterIP") != "None":
        yield "the service is not headless, so all streams stick to one pod"
    sources = [source["configMapRef"]["name"] for source in container["envFrom"]]
    if sources != [config_map["metadata"]["name"]]:
        yield f"the container reads {sources} and its settings are in {config_map['metadata']['name']}"
    budgets = [each for each in of_kind(documents, "PodDisruptionBudget") if each["metadata"]["name"] == pod.name]
    if len(budgets) != 1:
        yield f"it has {len(budgets)} disruption budgets"
    if not pod.spec.get("topologySpreadConstraints"):
        yield "its replicas may all be on one node"
    scaled = {each["spec"]["scaleTargetRef"]["name"]: each for each in of_kind(documents, "HorizontalPodAutoscaler")}
    yield from _update_problems(pod.workload["spec"], scaled.get(pod.name))

    try:
        settings = settings_of(documents, component)
    except (ValidationError, LookupError) as error:
        yield str(error)
        return
    yield from _exposure_problems(settings)
    yield from _port_problems(service, container, settings)
    yield from _probe_problems(container, settings, component)
    yield from _shutdown_problems(pod, container, settings.drain_seconds)
    yield from _file_problems(container, settings)
    yield from _gpu_problems(container, settings)
    if isinstance(settings, OrchestratorSettings):
        for peer, address in (("target", settings.target), ("draft", settings.draft)):
            port = find(documents, "Service", peer)["spec"]["ports"][0]["port"]
            if address != f"dns:///specdec-{peer}:{port}":
                yield f"{address} is not the address of the {peer} service"
            yield from _peer_problems(documents, settings, peer)


def _update_problems(spec: Document, autoscaler: Document | None) -> Iterator[str]:
    rolling = spec["strategy"].get("rollingUpdate", {})
    least = spec.get("replicas", 1) if autoscaler is None else autoscaler["spec"]["minReplicas"]
    if rolling.get("maxUnavailable") != 0 and least < 2:
        yield "an update takes the last replica away"


def _exposure_problems(settings: ServiceSettings) -> Iterator[str]:
    if settings.host != "0.0.0.0":  # noqa: S104
        yield f"it listens on {settings.host}, which no other pod reaches"
        return
    asks_callers = (
        bool(settings.client_ca or settings.token_file)
        if isinstance(settings, OrchestratorSettings)
        else isinstance(settings, ModelServiceSettings) and bool(settings.tls_ca or settings.shared_secret_file)
    )
    if not (settings.tls_cert and asks_callers) and not settings.insecure_bind:
        yield "it listens in plaintext without insecure_bind, so it will not start"


def _port_problems(service: Document, container: Document, settings: ServiceSettings) -> Iterator[str]:
    port = settings.port
    ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
    wanted = {"grpc": port, "metrics": settings.metrics_port, "health": settings.health_port}
    if ports != {name: number for name, number in wanted.items() if number is not None}:
        yield f"it listens on {wanted} and the container declares {ports}"
    for entry in service["ports"]:
        target = entry["targetPort"]
        number = ports.get(target) if isinstance(target, str) else target
        if number != port:
            yield f"port {entry['port']} of the service leads to {target}, not to {port}"
        if entry["port"] != port:
            yield f"a headless service cannot map port {entry['port']} to {port}"


def _probe_problems(container: Document, settings: ServiceSettings, component: str) -> Iterator[str]:
    health_names = {
        "startupProbe": STARTED_WHEN[component],
        "readinessProbe": "",
        "livenessProbe": LIVENESS_NAME,
    }
    # Probes have no certificate.
    port = settings.port if settings.tls_cert is None else settings.health_port
    for name, health_name in health_names.items():
        probe = container.get(name, {})
        if {"service": "", **probe.get("grpc", {})} != {"port": port, "service": health_name}:
            yield f"the {name} does not ask for the health of {health_name!r} on {port}"
    startup = container.get("startupProbe", {})
    allowed = startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3)
    if allowed < STARTUP_SECONDS[component]:
        yield f"the startupProbe gives up after {allowed} s and a start takes up to {STARTUP_SECONDS[component]} s"


def _shutdown_problems(pod: Pod, container: Document, drain_seconds: float) -> Iterator[str]:
    pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds")
    if pause is None:
        yield "it refuses work before its peers know that it goes: there is no preStop"
        return
    needed = pause + drain_seconds + CLOSING_SECONDS
    grace = pod.spec["terminationGracePeriodSeconds"]
    if grace < needed:
        yield f"terminationGracePeriodSeconds is {grace} and an orderly end takes up to {needed:g} s"


def _file_problems(container: Document, settings: ServiceSettings) -> Iterator[str]:
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    for name, value in settings.model_dump().items():
        if isinstance(value, Path) and not any(PurePosixPath(value).is_relative_to(mount) for mount in mounts):
            yield f"{name} is {value}, where nothing is mounted"


def _gpu_problems(container: Document, settings: ServiceSettings) -> Iterator[str]:
    devices = settings.device.split(",") if isinstance(settings, ModelServiceSettings) else []
    limits = container.get("resources", {}).get("limits", {})
    # Whatever GPUs a pod has, they are numbered from 0; `auto` takes what is there.
    wanted = sorted("cuda:0" if each == "cuda" else each for each in devices if each.startswith("cuda"))
    given = [f"cuda:{number}" for number in range(limits.get("nvidia.com/gpu", 0))]
    if wanted != given and devices != ["auto"]:
        yield f"its device is {','.join(devices) or 'none'} and it is given {len(given)} GPUs"


def _peer_problems(documents: list[Document], settings: OrchestratorSettings, peer: str) -> Iterator[str]:
    """What must agree for an orchestrator to be let in by a service."""
    try:
        other = settings_of(documents, peer)
    except (ValidationError, LookupError):
        return
    if (settings.tls_ca is None) != (other.tls_cert is None):
        yield f"it and the {peer} service do not agree on TLS"
    if not isinstance(other, ModelServiceSettings) or other.tls_ca is None:
        return
    names = {
        each["metadata"]["name"]: each["spec"]["dnsNames"]
        for each in of_kind(documents, "Certificate")
        if "dnsNames" in each["spec"]
    }
    if f"specdec-{peer}" not in names.get(f"specdec-{peer}", []):
        yield f"the certificate of the {peer} service does not hold the name it is called by"
    if not set(other.allowed_peers.split(",")) & set(names.get("specdec-orchestrator", [])):
        yield f"its certificate holds none of the names that the {peer} service lets in"

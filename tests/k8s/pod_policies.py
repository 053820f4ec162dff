"""What every pod must keep to, whatever runs in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.k8s.documents import Pod
from tests.k8s.rendering import Document

_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_CACHE_VARIABLES = ("SPECDEC_CACHE", "HF_HOME")
_WRITABLE = ("emptyDir", "persistentVolumeClaim")


def pod_problems(pod: Pod) -> Iterator[str]:
    """Everything that is wrong with a workload's pods by themselves; a sentence each."""
    spec = pod.spec
    if spec.get("enableServiceLinks") is not False:
        yield "variables of the namespace's services would be read as settings"
    if spec.get("automountServiceAccountToken") is not False:
        yield "it carries a token of the cluster that it does not need"
    if spec.get("serviceAccountName", "default") == "default":
        yield "it runs under the service account of the namespace"
    if any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        yield "it shares a namespace with its node"
    if spec.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "the seccomp profile is not RuntimeDefault"
    for container in pod.containers:
        yield from _container_problems(spec, container)
    if pod.workload["kind"] == "Deployment":
        for container, name in ((container, name) for container in spec["containers"] for name in _PROBES):
            if name not in container:
                yield f"the {name} is missing"
    yield from _volume_problems(spec, pod.containers)


def _container_problems(spec: Document, container: Document) -> Iterator[str]:
    of_pod, of_container = spec.get("securityContext", {}), container.get("securityContext", {})
    user = of_container.get("runAsUser", of_pod.get("runAsUser"))
    if not user or not of_container.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
        yield f"it may run as root (user {user})"
    if of_container.get("allowPrivilegeEscalation") is not False or of_container.get("privileged"):
        yield "it may gain privileges"
    if of_container.get("readOnlyRootFilesystem") is not True:
        yield "its root file system is writable"
    if of_container.get("capabilities") != {"drop": ["ALL"]}:
        yield "it keeps capabilities"
    resources = container.get("resources", {})
    for bound in ("requests", "limits"):
        if not {"cpu", "memory"} <= resources.get(bound, {}).keys():
            yield f"its {bound} name no cpu or no memory"
    _, separator, tag = container["image"].rpartition(":")
    if not separator or "/" in tag or tag == "latest":
        yield f"the image {container['image']} has no tag that stays"


def _volume_problems(spec: Document, containers: list[Document]) -> Iterator[str]:
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    mounted = {mount["name"] for container in containers for mount in container.get("volumeMounts", [])}
    if volumes.keys() != mounted:
        yield f"it has the volumes {sorted(volumes)} and mounts {sorted(mounted)}"
        return
    for volume in volumes.values():
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"the volume {volume['name']} may fill its node"
        if "hostPath" in volume:
            yield f"the volume {volume['name']} is a directory of the node"
    for container in containers:
        mounts = {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}
        for variable in container.get("env", []):
            if variable["name"] in _CACHE_VARIABLES and not any(
                PurePosixPath(variable["value"]).is_relative_to(path)
                for path, mount in mounts.items()
                if any(kind in volumes[mount["name"]] for kind in _WRITABLE)
            ):
                yield f"{variable['name']} names {variable['value']}, which is on no volume"
        if any(variable["name"] in _CACHE_VARIABLES for variable in container.get("env", [])) and "/tmp" not in mounts:  # noqa: S108
            yield "nothing is writable under /tmp"

"""From the manifest of a pod to a process on this machine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.k8s.documents import of_kind, pod_of
from tests.k8s.rendering import K8S, Document

_DOCKERFILE = K8S.parent / "Dockerfile"
_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104


@dataclass(frozen=True)
class PodPlan:
    """What the manifests say of the pods of one Deployment. Read it once, use it for each replica."""

    component: str
    container: Document
    secrets: Mapping[str, Document]
    """Sources of volumes that are Secrets, by the path where the pod has them."""
    variables: Mapping[str, str]
    pause_seconds: float
    """Of preStop."""
    grace_seconds: float

    @classmethod
    def of(cls, documents: list[Document], component: str) -> PodPlan:
        """Read the manifests."""
        pod = pod_of(documents, component)
        (container,) = pod.spec["containers"]
        data = {each["metadata"]["name"]: each["data"] for each in of_kind(documents, "ConfigMap")}
        variables: dict[str, str] = {}
        for source in container["envFrom"]:
            variables |= data[source["configMapRef"]["name"]]
        variables |= {variable["name"]: variable["value"] for variable in container.get("env", [])}
        volumes = {volume["name"]: volume["secret"] for volume in pod.spec["volumes"] if "secret" in volume}
        mounts = container["volumeMounts"]
        return cls(
            component,
            container,
            {mount["mountPath"]: volumes[mount["name"]] for mount in mounts if mount["name"] in volumes},
            variables,
            container["lifecycle"]["preStop"]["sleep"]["seconds"],
            pod.spec["terminationGracePeriodSeconds"],
        )

    @property
    def command(self) -> list[str]:
        """Of the container, or else of its image; with this environment's Python."""
        command = [*self.container.get("command", _entrypoint(self.component)), *self.container.get("args", [])]
        assert command[0] == "python"
        return [sys.executable, *command[1:]]

    def port(self, name: str) -> int:
        """Number of a port of the pod."""
        (port,) = (each["containerPort"] for each in self.container["ports"] if each["name"] == name)
        return int(port)

    def environment(self, address: str, volumes: Path, changes: Mapping[str, str]) -> dict[str, str]:
        """Variables of one replica.

        Args:
            address: of the pod. It has no network namespace of its own here, so "every address" becomes this one.
            volumes: directory in which the volumes lie, at the paths that they have in the pod.
            changes: variables of another value than in the manifests, with paths of this machine.
        """
        paths = tuple(mount["mountPath"] for mount in self.container.get("volumeMounts", []))
        for path in paths:
            (volumes / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        given = {
            name: address if value == _EVERY_ADDRESS else f"{volumes}{value}" if value.startswith(paths) else value
            for name, value in self.variables.items()
        }
        return {**given, **changes}

    def write_secrets(self, volumes: Path, contents: Mapping[str, Mapping[str, bytes]]) -> None:
        """Lay files into a replica's volumes.

        Args:
            volumes: as of `environment`.
            contents: of each Secret its files.
        """
        for path, source in self.secrets.items():
            files = contents[source["secretName"]]
            items = source.get("items", [{"key": name, "path": name} for name in files])
            for item in items:
                (volumes / path.lstrip("/") / item["path"]).write_bytes(files[item["key"]])


def _entrypoint(target: str) -> list[str]:
    stage = _DOCKERFILE.read_text(encoding="utf-8").partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
    found = re.search(r"^ENTRYPOINT (\[.*\])$", stage, re.MULTILINE)
    assert found is not None
    words: list[str] = json.loads(found[1])
    return words

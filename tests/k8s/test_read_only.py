"""The built images as the pods of the manifests run them: not root, no capabilities, and little that can be written."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.cli.child_process import ChildProcess
from specdec.cli.ports import choose_ports
from specdec.client import GenerationClient
from tests.end_to_end.requests import chat_request
from tests.k8s.built_images import ImageStore
from tests.k8s.conftest import Fresh
from tests.k8s.contained import USER, Containment, make_volume
from tests.k8s.documents import pod_of
from tests.k8s.rehearsal.plan import PodPlan
from tests.k8s.rendering import Combination, Document

pytestmark = [pytest.mark.images, pytest.mark.timeout(5400)]

COMPONENTS = ("target", "draft", "orchestrator")
START_SECONDS = 600.0
"""Of a target that fetches its model and converts it."""
LOOK = """
id -u
grep CapEff /proc/self/status
for place in / /opt/specdec /home/specdec /etc /var/tmp /dev {mounts}; do
  touch $place/new 2>/dev/null && echo $place
done
"""


class ContainedPods:
    """The pods of rendered manifests, in the files of their images.

    Args:
        store: of the images.
        documents: rendered manifests.
        directory: for volumes.
        models: what the volume of the component `model-cache` holds, which they only read.
    """

    def __init__(
        self, store: ImageStore, documents: list[Document], directory: Path, models: Path | None = None
    ) -> None:
        self._store = store
        self._documents = documents
        self._directory = directory
        addresses = choose_ports([("127.0.0.1", 0)] * len(COMPONENTS))
        self.ports = dict(zip(COMPONENTS, addresses, strict=True))
        self.volumes: dict[str, dict[str, Path]] = {}
        """Of each component, by the path where it has them: what it can write."""
        self._models = models

    def containment(self, component: str) -> Containment:
        """What a pod sees: its volumes, and what pip of this machine reads."""
        spec = pod_of(self._documents, component).spec
        (container,) = spec["containers"]
        kinds = {volume["name"]: (volume.keys() - {"name"}).pop() for volume in spec["volumes"]}
        # Names of the package index are looked up as on this machine.
        files = {**self._store.pip_files(), "/etc/resolv.conf": Path("/etc/resolv.conf")}
        volumes = self.volumes.setdefault(component, {})
        for mount in container["volumeMounts"]:
            path = mount["mountPath"]
            if kinds[mount["name"]] == "emptyDir":
                if path not in volumes:
                    volumes[path] = make_volume(self._directory / component / mount["name"])
            else:
                assert mount["readOnly"]
                assert self._models is not None
                files[path] = self._models
        return Containment(self._store.files(self._store.build(component)), volumes, files)

    def command(self, component: str) -> list[str]:
        """Of a pod: the entry point and the variables of its image and of its manifest, but for ports."""
        configuration = self._store.configuration(self._store.build(component))
        environment = dict(variable.split("=", 1) for variable in configuration["Env"])
        environment |= PodPlan.of(self._documents, component).variables
        prefix = f"SPECDEC_{component.upper()}"
        environment |= {f"{prefix}_HOST": "127.0.0.1", f"{prefix}_PORT": str(self.ports[component])}
        environment |= {f"{prefix}_METRICS_PORT": "0"}
        if component == "orchestrator":
            environment |= {f"{prefix}_{peer.upper()}": f"127.0.0.1:{self.ports[peer]}" for peer in ("target", "draft")}
        return self.containment(component).command(configuration["Entrypoint"], environment)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[list[ChildProcess]]:
        """All of them, ready."""
        children = [ChildProcess(component, self.command(component)) for component in COMPONENTS]
        try:
            for child in children:
                await child.start()
            for child in children:
                await _ready(child, self.ports[child.name])
            yield children
        finally:
            for child in children:
                await child.stop(0)


async def test_the_pods_serve_from_a_read_only_root(store: ImageStore, fresh: Fresh, tmp_path: Path) -> None:
    pods = ContainedPods(store, fresh(Combination("overlays/cpu")), tmp_path / "fetching")
    _check_what_can_be_written(pods)
    await _serve(pods)
    models = pods.volumes["target"]["/var/cache/specdec"]
    assert list(models.rglob("*.safetensors"))

    # And from a volume that a Job has filled.
    documents = fresh(Combination("overlays/cpu", ("model-cache",)))
    pods = ContainedPods(store, documents, tmp_path / "reading", models)
    _check_what_can_be_written(pods)
    assert {path for volumes in pods.volumes.values() for path in volumes} == {"/tmp"}  # noqa: S108
    before = sorted(models.rglob("*"))
    await _serve(pods)
    assert sorted(models.rglob("*")) == before


def _check_what_can_be_written(pods: ContainedPods) -> None:
    """Nothing but the volumes, and by nobody with any power."""
    for component in COMPONENTS:
        containment = pods.containment(component)
        paths = [*containment.volumes, *containment.files]
        look = containment.command(["sh", "-c", LOOK.format(mounts=" ".join(paths))], {"PATH": "/usr/bin:/bin"})
        said = subprocess.run(look, capture_output=True, text=True, check=False, timeout=60)
        number, capabilities, *writable = said.stdout.splitlines()
        assert number == str(USER), said.stderr
        assert int(capabilities.split()[1], 16) == 0
        assert sorted(writable) == sorted(containment.volumes)


async def _serve(pods: ContainedPods) -> None:
    """Start them, ask for something, and end them in order."""
    async with pods.running() as children:
        async with GenerationClient(f"127.0.0.1:{pods.ports['orchestrator']}") as client:
            result = await client.collect(chat_request("Count from one to twenty.", num_draft_tokens=4))
        assert result.text.strip()
        # With the draft that comes with the code, which reads its target's embeddings.
        assert sum(each.num_accepted_tokens for each in result.rounds) > 0
        for child in reversed(children):
            await child.stop(60)
            assert child.ending == "ended with status 0", "\n".join(child.lines)


async def _ready(child: ChildProcess, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert child.is_running, "\n".join([child.ending, *child.lines])
        assert time.monotonic() < deadline, "\n".join(child.lines)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with contextlib.suppress(grpc.aio.AioRpcError):
                response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2)
                if response.status == health_pb2.HealthCheckResponse.SERVING:
                    return
        await asyncio.sleep(1)

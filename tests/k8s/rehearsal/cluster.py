"""Deployments and headless Services, as far as a rehearsal needs them."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from tests.k8s.documents import SERVICES
from tests.k8s.rehearsal.kubelet import RehearsedPod
from tests.k8s.rehearsal.names import Names
from tests.k8s.rehearsal.plan import PodPlan
from tests.k8s.rendering import Document

_FOR_TESTS = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}


class Cluster:
    """Runs the three Deployments of some manifests; an asynchronous context manager that ends every pod.

    Args:
        documents: rendered manifests.
        directory: for volumes, empty.
        changes: of each component, variables of another value than in the manifests.
        secrets: files of the Secrets that its volumes are of.
    """

    def __init__(
        self,
        documents: list[Document],
        directory: Path,
        changes: Mapping[str, Mapping[str, str]],
        secrets: Mapping[str, Mapping[str, bytes]] | None = None,
    ) -> None:
        self._plans = {component: PodPlan.of(documents, component) for component in SERVICES}
        self._directory = directory
        self._changes = changes
        self._secrets = secrets or {}
        self._names = Names(directory / "names.json", [f"specdec-{component}" for component in SERVICES])
        self._numbers = itertools.count(1)
        self.pods: dict[str, list[RehearsedPod]] = {component: [] for component in SERVICES}
        """Those that are not on their way out, oldest first."""
        self.gone: list[RehearsedPod] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(pod.close() for pods in self.pods.values() for pod in pods))
        await asyncio.gather(*(pod.close() for pod in self.gone))

    async def scale(self, component: str, num_replicas: int) -> list[RehearsedPod]:
        """Start what is missing and give it, without waiting until it is ready; or delete what is too many, and wait.

        Raises:
            RehearsalError: a pod did not end as it should.
        """
        pods = self.pods[component]
        if len(pods) > num_replicas:
            # Kubernetes takes the youngest first.
            leaving, self.pods[component] = pods[num_replicas:], pods[:num_replicas]
            self.gone += leaving
            await asyncio.gather(*(pod.delete() for pod in leaving))
            return []
        new = [self._new_pod(component) for _ in range(num_replicas - len(pods))]
        pods += new
        for pod in new:
            await pod.start()
        return new

    def check(self) -> None:
        """
        Raises:
            RehearsalError: a pod has ended by itself, or is dead by its probes.
        """
        for pod in itertools.chain.from_iterable(self.pods.values()):
            pod.check()

    def _new_pod(self, component: str) -> RehearsedPod:
        plan, number = self._plans[component], next(self._numbers)
        # All of 127.0.0.0/8 is this machine. The number of this process keeps runs at one time apart.
        address = f"127.{64 + os.getpid() % 128}.{os.getpid() // 128 % 256}.{number}"
        volumes = self._directory / f"{component}-{number}"
        environment = plan.environment(address, volumes, self._changes.get(component, {}))
        plan.write_secrets(volumes, self._secrets)
        return RehearsedPod(
            plan,
            f"{component}-{number}",
            address,
            {**environment, **self._names.environment, **_FOR_TESTS},
            functools.partial(self._note_readiness, f"specdec-{component}"),
        )

    def _note_readiness(self, service: str, address: str, is_ready: bool) -> None:
        if is_ready:
            self._names.add(service, address)
        else:
            self._names.remove(service, address)

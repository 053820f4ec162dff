"""What kustomize makes of the directories of k8s/, and of every combination of them that a user can write down."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

K8S = Path(__file__).parents[2] / "k8s"
BASES = ("base", "overlays/cpu", "overlays/gpu")
COMPONENTS = ("autoscaling", "gateway", "model-cache", "monitoring", "monitoring-operator", "otel-collector", "tls")
CONTAINED: Mapping[str, tuple[str, ...]] = {"overlays/gpu": ("model-cache",)}
"""Components that are part of an overlay, and cannot be added once more."""
_BATCH = 12
"""Combinations by one run. A start costs as much as several of them, and many at once more than their sum."""
_NUM_RUNS = 2


@dataclass(frozen=True)
class Combination:
    """One base or overlay with some components on top."""

    base: str
    components: tuple[str, ...] = ()

    @property
    def all_components(self) -> frozenset[str]:
        """Those that the overlay brings, too."""
        return frozenset((*self.components, *CONTAINED.get(self.base, ())))

    @property
    def name(self) -> str:
        """In words that Kubernetes takes for a namespace."""
        return "-".join((self.base.rpartition("/")[2], *self.components))


ALL_COMBINATIONS = tuple(
    Combination(base, components)
    for base in BASES
    for free in [[name for name in COMPONENTS if name not in CONTAINED.get(base, ())]]
    for number in range(len(free) + 1)
    for components in itertools.combinations(free, number)
)


def render(directory: Path) -> list[Document]:
    """The documents that kustomize makes of a directory."""
    search_path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    kubectl = shutil.which("kubectl", path=search_path)
    assert kubectl is not None, "kubectl is missing; run `make setup`"
    done = subprocess.run(
        [kubectl, "kustomize", str(directory)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.load_all(done.stdout, Loader=_LOADER) if document]


def render_combinations(combinations: Sequence[Combination], directory: Path) -> dict[Combination, list[Document]]:
    """All of them, several by one run of kustomize: each in a namespace of its own, which is taken away again.

    Args:
        combinations: to render.
        directory: empty; for the kustomizations that this writes.
    """
    batches = [combinations[start : start + _BATCH] for start in range(0, len(combinations), _BATCH)]
    with ThreadPoolExecutor(_NUM_RUNS) as pool:
        rendered = pool.map(_render_batch, batches, itertools.repeat(directory))
        return {combination: documents for batch in rendered for combination, documents in batch.items()}


def _render_batch(combinations: Sequence[Combination], directory: Path) -> dict[Combination, list[Document]]:
    for combination in combinations:
        own = directory / combination.name
        _write(
            own,
            kind="Kustomization",
            namespace=combination.name,
            resources=[_way(own, combination.base)],
            components=[_way(own, f"components/{name}") for name in combination.components],
        )
    batch = directory / f"batch-{combinations[0].name}"
    _write(batch, kind="Kustomization", resources=[f"../{each.name}" for each in combinations])
    by_namespace: dict[str, list[Document]] = {each.name: [] for each in combinations}
    for document in render(batch):
        by_namespace[document["metadata"].pop("namespace")].append(document)
    return {combination: by_namespace[combination.name] for combination in combinations}


def _write(directory: Path, **content: object) -> None:
    directory.mkdir(parents=True)
    text = yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", **content})
    (directory / "kustomization.yaml").write_text(text, encoding="utf-8")


def _way(start: Path, name: str) -> str:
    return os.path.relpath((K8S / name).resolve(), start.resolve())


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C takes a tenth of the time."""

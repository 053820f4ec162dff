"""What the Dockerfile says: small, without root, checked, and what the manifests expect."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.k8s.conftest import Fresh
from tests.k8s.documents import SERVICES, pod_of
from tests.k8s.rendering import K8S, Combination

ROOT = K8S.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
LARGEST_ORCHESTRATOR_BYTES = 250e6


def stage(name: str) -> str:
    """Instructions of a stage and of those that it is made from."""
    found = re.search(rf"^FROM (\S+) AS {re.escape(name)}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    if found is None:
        return ""
    return stage(found[1]) + found[2]


def closure(name: str) -> Iterator[importlib.metadata.Distribution]:
    """A distribution and all that it needs, without extras of its own."""
    waiting, seen = [Requirement(name)], set()
    while waiting:
        requirement = waiting.pop()
        key = (re.sub(r"[-_.]+", "-", requirement.name).lower(), *sorted(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        distribution = importlib.metadata.distribution(requirement.name)
        yield distribution
        extras = requirement.extras or {""}
        waiting += [
            needed
            for line in distribution.requires or ()
            for needed in [Requirement(line)]
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
        ]


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=sysconfig.get_path("scripts"))
    assert hadolint is not None, "hadolint is missing; run `make setup`"
    done = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("component", SERVICES)
def test_an_image_is_what_the_manifests_expect(fresh: Fresh, component: str) -> None:
    instructions = stage(component)
    pod = pod_of(fresh(Combination("base")), component)
    context = pod.spec["securityContext"]
    assert re.findall(r"^USER (.+)$", instructions, re.MULTILINE) == [f"{context['runAsUser']}:{context['runAsGroup']}"]
    assert re.findall(r"^EXPOSE (.+)$", instructions, re.MULTILINE) == [str(pod.ports["grpc"])]
    (health,) = re.findall(r"^HEALTHCHECK .* CMD (\[.+\])$", instructions, re.MULTILINE)
    assert json.loads(health) == ["python", "-m", "specdec.serving.probe", component]
    (entrypoint,) = re.findall(r"^ENTRYPOINT (\[.+\])$", instructions, re.MULTILINE)
    assert (ROOT / json.loads(entrypoint)[2] / "__main__.py").is_file()


def test_the_orchestrator_has_no_part_of_the_models() -> None:
    assert "models-environment" not in stage("orchestrator")
    assert "torch" not in stage("base-environment")
    assert "models-environment" in stage("target")


def test_what_is_built_on_and_installed_stays_the_same() -> None:
    image = re.search(r"^ARG PYTHON_IMAGE=(.+)$", DOCKERFILE, re.MULTILINE)
    assert image is not None
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", image[1])
    # The wheel of this project, its build, and what is pinned.
    installs = re.findall(r"^RUN .*pip (?:install|wheel).*$", DOCKERFILE, re.MULTILINE)
    assert len(installs) == 4
    assert all("-c constraints.txt" in line or "--no-deps" in line for line in installs)


def test_nothing_but_the_source_goes_into_an_image() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert ignored[1] == "*"
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]
    }
    assert copied == {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert not re.findall(r"^ADD |--mount=type=secret|(?i:token|password|secret)=", DOCKERFILE, re.MULTILINE)


def test_the_packages_of_the_orchestrator_are_small() -> None:
    files: set[Path] = set()
    names = set()
    for distribution in closure("specdec"):
        names.add(distribution.name)
        files |= {Path(str(path.locate())) for path in distribution.files or ()}
    files |= {
        path
        for name in ("specdec", "orchestrator", "draft_service", "target_service")
        for path in (ROOT / name).rglob("*")
    }
    assert {"grpcio", "tokenizers", "opentelemetry-sdk"} <= names
    assert not names & {"torch", "transformers", "numpy"}
    size = sum(path.stat().st_size for path in files if path.is_file())
    assert size < LARGEST_ORCHESTRATOR_BYTES, f"{size / 1e6:.0f} MB"

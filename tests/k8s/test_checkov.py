"""What checkov knows of good manifests and Dockerfiles, but for what checkov.yaml passes over with a reason."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s.conftest import Fresh
from tests.k8s.documents import pod_of
from tests.k8s.rendering import BASES, COMPONENTS, CONTAINED, K8S, Combination, Document

pytestmark = pytest.mark.checkov

CONFIG = Path(__file__).parent / "checkov.yaml"


def failed_checks(directory: Path) -> tuple[set[str], int]:
    """What checkov objects to in the files of a directory, and how many checks were passed."""
    program = shutil.which("checkov")
    assert program is not None, "checkov is missing; run `pipx install checkov`, or put it on the PATH"
    command = [program, "--config-file", str(CONFIG), "--directory", str(directory), "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout, done.stderr
    read = json.loads(done.stdout)
    reports: list[dict[str, Any]] = read if isinstance(read, list) else [read]
    failed = {
        f"{check['check_id']} {check['resource']}: {check['check_name']}"
        for report in reports
        for check in report["results"]["failed_checks"]
    }
    return failed, sum(report["summary"]["passed"] for report in reports)


def write(directory: Path, name: str, documents: list[Document]) -> None:
    (directory / f"{name}.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")


def test_it_objects_to_nothing_else(fresh: Fresh, tmp_path: Path) -> None:
    for base in BASES:
        everything = tuple(name for name in COMPONENTS if name not in CONTAINED.get(base, ()))
        for components in ((), everything):
            combination = Combination(base, components)
            write(tmp_path, combination.name, fresh(combination))
    shutil.copy(K8S.parent / "Dockerfile", tmp_path)
    failed, num_passed = failed_checks(tmp_path)
    assert failed == set()
    assert num_passed > 1000


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda spec: spec["securityContext"].update(runAsUser=0, runAsNonRoot=False), "CKV_K8S_"),
        (lambda spec: spec["containers"][0].pop("livenessProbe"), "CKV_K8S_8 "),
        (lambda spec: spec["containers"][0]["resources"].pop("limits"), "CKV_K8S_13 "),
    ],
)
def test_it_objects_to_a_slip(fresh: Fresh, tmp_path: Path, change: Callable[[Document], object], check: str) -> None:
    documents = fresh(Combination("base"))
    change(pod_of(documents, "target").spec)
    write(tmp_path, "base", documents)
    failed, _ = failed_checks(tmp_path)
    assert any(each.startswith(check) and "specdec-target" in each for each in failed), failed

"""The alert rules by Prometheus' own tool: they are well formed, and fire when they should and not before."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.k8s.rendering import K8S
from tests.k8s.test_monitoring import RULES

pytestmark = pytest.mark.promtool

CASES = Path(__file__).parent / "alerts_test.yaml"


def promtool(*arguments: str) -> str:
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing; run `apt-get install prometheus`, or put it on the PATH"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_well_formed() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", str(K8S / "components/monitoring/alerts.yaml"))


def test_they_fire_when_they_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(CASES))


def test_every_rule_has_a_case() -> None:
    cases = CASES.read_text(encoding="utf-8")
    assert [rule["alert"] for rule in RULES if f"alertname: {rule['alert']}" not in cases] == []

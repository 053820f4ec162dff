"""What docs/security.md says about making certificates can be done as it stands there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.settings import OrchestratorSettings
from specdec.serving.certificates import CertificateFiles
from specdec.serving.secrets import read_secrets
from specdec.settings import ModelServiceSettings

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_the_certificates_of_the_page_are_good(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    (script,) = (block for block in blocks if "make_certificate()" in block)
    script = "".join(line for line in script.splitlines(keepends=True) if not line.startswith("specdec "))
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("target", "draft", "orchestrator"):
        CertificateFiles(tmp_path / f"{name}.pem", tmp_path / f"{name}.key", tmp_path / "ca.pem").read()
        verify = ["openssl", "verify", "-CAfile", "ca.pem", "-verify_hostname", name, f"{name}.pem"]
        subprocess.run(verify, cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert len(read_secrets(tmp_path / "shared-secret")) == 1


def test_the_flags_of_the_page_are_flags() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    of_servers = {
        f"--{name.replace('_', '-')}"
        for settings in (OrchestratorSettings, ModelServiceSettings)
        for name in settings.model_fields
    }
    sources = "".join(path.read_text() for path in (ROOT / "specdec" / "cli").glob("*.py"))
    of_commands = {f"--{name}" for name in ("name", "requests", "concurrent", "tokens", "server")}
    of_commands |= set(re.findall(r'"(--[a-z-]+)"', sources))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page)) <= of_servers | of_commands

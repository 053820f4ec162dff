import hashlib
import os
from pathlib import Path

import pytest

from specdec.models import hashes


def test_hash_of_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3_000_000)
    assert hashes.file_sha256(path) == hashlib.sha256(b"x" * 3_000_000).hexdigest()


def test_known_file_is_not_read_again(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    digest = hashes.remembered_sha256(path)
    assert digest == hashlib.sha256(b"content").hexdigest()
    with monkeypatch.context() as patched:
        patched.setattr(hashes, "file_sha256", lambda path: pytest.fail("read again"))
        assert hashes.remembered_sha256(path) == digest
    # Same size, another time of change.
    path.write_bytes(b"CONTENT")
    os.utime(path, ns=(1, 1))
    assert hashes.remembered_sha256(path) == hashlib.sha256(b"CONTENT").hexdigest()
    assert len(list((empty_cache / "hashes").iterdir())) == 1


def test_damaged_memory_is_ignored(tmp_path: Path, empty_cache: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    digest = hashes.remembered_sha256(path)
    (record,) = (empty_cache / "hashes").iterdir()
    for damage in ("", "[]", "{}", "null"):
        record.write_text(damage)
        assert hashes.remembered_sha256(path) == digest


def test_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    monkeypatch.setenv("SPECDEC_CACHE", str(path))
    assert hashes.remembered_sha256(path) == hashlib.sha256(b"content").hexdigest()

"""Hashes of files that are worth knowing by their content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from specdec.models import cache


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def remembered_sha256(path: Path) -> str:
    """`file_sha256`, remembered in the cache by path, size and time of change: many GB take minutes to read.

    Raises:
        OSError: the file cannot be read. A cache that cannot be written is no error.
    """
    absolute = path.absolute()
    status = absolute.stat()
    identity = [os.fsdecode(absolute), status.st_size, status.st_mtime_ns]
    record = cache.models_directory() / "hashes" / f"{hashlib.sha256(os.fsencode(absolute)).hexdigest()}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(record.read_text(encoding="utf-8"))
        if known["identity"] == identity:
            return str(known["sha256"])
    digest = file_sha256(absolute)
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        draft = record.with_name(f"{record.name}.{os.getpid()}")
        draft.write_text(json.dumps({"identity": identity, "sha256": digest}), encoding="utf-8")
        draft.replace(record)
    return digest

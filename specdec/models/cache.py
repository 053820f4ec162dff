"""The user's cache of converted models. An entry appears whole or not at all, and is made once."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from specdec.models.errors import ModelError

_WAIT_SECONDS = 3600.0
"""Longest wait for another process that makes the same entry: a download over a slow link, and a conversion."""


def cache_directory() -> Path:
    """The user's cache: SPECDEC_CACHE, or else specdec/ under XDG_CACHE_HOME or ~/.cache. Not created."""
    root = os.environ.get("SPECDEC_CACHE")
    if root:
        return Path(root).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specdec"


def models_directory() -> Path:
    """Where entries live. Not created."""
    return cache_directory() / "models"


def entry_directory(key: str) -> Path | None:
    """The entry of that key, or None if it is not there (or not complete yet)."""
    entry = models_directory() / key
    return entry if entry.is_dir() else None


def make_entry(key: str, fill: Callable[[Path], None], *, room_bytes: int, wait_seconds: float = _WAIT_SECONDS) -> Path:
    """The entry of that key; if it is absent, `fill` writes its files into the directory it is given.

    Several processes may ask at once: one does the work and the others wait. Until `fill` has returned and everything
    is on disk the files lie under another name, so whatever interrupts it leaves no entry.

    Args:
        key: name of the entry's directory.
        fill: writes the files.
        room_bytes: room on disk that `fill` needs.
        wait_seconds: longest wait for another process.

    Raises:
        ModelError: no room, no permission, or the other process takes too long; and what `fill` raises.
    """
    models = models_directory()
    entry = models / key
    # Looked at before anything is written: a cache that is complete may be read-only.
    if entry.is_dir():
        return entry
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f"{key}.lock", timeout=wait_seconds):
            if not entry.is_dir():
                _fill_and_publish(entry, fill, room_bytes)
    except Timeout:
        raise ModelError(
            f"another process has been preparing {entry} for {wait_seconds:.0f} seconds; wait for it or end it"
        ) from None
    except OSError as error:
        raise storage_error(models, error) from error
    return entry


def check_room(directory: Path, needed_bytes: int, variable: str = "SPECDEC_CACHE") -> None:
    """Refuse before writing what will not fit; `variable` is the one that moves the directory.

    Raises:
        ModelError: the file system of `directory` has less room than that.
    """
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise ModelError(
            f"{directory} has room for {megabytes(free_bytes)} and {megabytes(needed_bytes)} are needed; "
            f"free some, or set {variable} to a directory with more"
        )


def storage_error(directory: Path, error: OSError, variable: str = "SPECDEC_CACHE") -> ModelError:
    """What an error of the file system means for the person who owns the cache; `variable` moves the directory."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelError(f"no room is left on disk in {directory}; free some, or set {variable} to another directory")
    return ModelError(
        f"the cache {directory} cannot be used ({error.strerror or error}); set {variable} to a writable directory"
    )


def megabytes(size_bytes: int) -> str:
    """A size for people."""
    return f"{size_bytes / 1e6:,.0f} MB"


def _fill_and_publish(entry: Path, fill: Callable[[Path], None], room_bytes: int) -> None:
    check_room(entry.parent, room_bytes)
    partial = entry.with_name(f"{entry.name}.partial")
    # What a killed process left.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        fill(partial)
        _write_through(partial)
        partial.replace(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_through(directory: Path) -> None:
    """Have every file on disk before the rename is, or a power cut could publish an entry with empty files."""
    for path in (*directory.iterdir(), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

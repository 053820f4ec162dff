"""Files of a training run: each appears whole or not at all, and a full disk is one sentence."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdec.models.errors import ModelError


@contextmanager
def storage_errors(directory: Path) -> Iterator[None]:
    """Turn errors of the file system into what to do about them."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(
                f"no room is left on disk in {directory}; free some and run the same command again: it goes on from "
                "the last file that was complete"
            ) from error
        raise ModelError(
            f"{directory} cannot be used ({error.strerror or error}); choose another directory with --out"
        ) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, have it on disk, and only then put it in place.

    Raises:
        ModelError: no room or no permission; what was at `path` before is still there.
    """
    partial = path.with_name(f"{path.name}.partial")
    with storage_errors(path.parent):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

"""The folder of a run: what it was begun with, and the lock that keeps a second process out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from draft_service.training.storage import storage_errors, write_whole
from specdec.models.errors import ModelError


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold a directory, created if need be, for this process alone.

    Raises:
        ModelError: another process has it, or it cannot be written.
    """
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ModelError(
                f"another process is training in {directory}; wait for it, or give another --out"
            ) from None
    try:
        yield
    finally:
        lock.release()


def check_same(path: Path, facts: Mapping[str, object]) -> None:
    """Note what a folder was begun with; refuse to go on in it with something else.

    Args:
        path: of the note.
        facts: JSON values by name.

    Raises:
        ModelError: names the first fact that differs.
    """
    now = json.loads(json.dumps(facts))
    if not path.exists():
        write_whole(path, json.dumps(now, indent=2).encode())
        return
    try:
        with storage_errors(path.parent):
            before = json.loads(path.read_text(encoding="utf-8"))
        changed = next((name for name in now if before.get(name) != now[name]), None)
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path} is damaged; give another --out to begin anew") from error
    if changed is not None:
        raise ModelError(
            f"{path.parent} was begun with {changed} {before.get(changed)!r} and now it is {now[changed]!r}; "
            "use the same to go on, or give another --out to begin anew"
        )

"""What cluster DNS says of a headless Service: the addresses of its pods that are ready."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

_PATCH = Path(__file__).parent / "every_process"


class Names:
    """A file of names that rehearsed processes read.

    Args:
        path: of the file.
        names: that exist, with no address at first.
    """

    def __init__(self, path: Path, names: list[str]) -> None:
        self._path = path
        self._addresses: dict[str, list[str]] = {name: [] for name in names}
        self._write()

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables with which a Python process looks names up here."""
        return {"REHEARSAL_NAMES": str(self._path), "PYTHONPATH": str(_PATCH)}

    def add(self, name: str, address: str) -> None:
        """A pod of that Service is ready."""
        if address not in self._addresses[name]:
            self._addresses[name].append(address)
            self._write()

    def remove(self, name: str, address: str) -> None:
        """It is not, or goes."""
        if address in self._addresses[name]:
            self._addresses[name].remove(address)
            self._write()

    def _write(self) -> None:
        # Whole or not at all: others read it at any moment.
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(self._addresses), encoding="utf-8")
        draft.replace(self._path)

"""Runs a command in the files of an image as a pod does: read-only, as its user, without capabilities.

Needs root, and Linux' namespaces; no container engine. The network is this machine's.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

USER = 65532
_DEVICES = ("null", "zero", "random", "urandom")
_SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Containment:
    """What a container sees.

    Args:
        root: files of the image; places for what is mounted are made in it, and nothing else is written.
        volumes: directories that can be written, by the path where the container has them.
        files: of this machine, to be read, by the same.
    """

    root: Path
    volumes: Mapping[str, Path]
    files: Mapping[str, Path] = field(default_factory=dict)

    def command(self, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """What runs a command in it: one process, which is the command's own by the time that it does anything.

        Args:
            command: of the container.
            environment: all variables that it has.
        """
        for path in (*self.volumes, "/proc", "/dev", "/sys"):
            self._place(path).mkdir(parents=True, exist_ok=True)
        for path, source in self.files.items():
            if source.is_dir():
                self._place(path).mkdir(parents=True, exist_ok=True)
            else:
                self._place(path).touch()
        lines = ["set -e", _words("mount", "--bind", str(self.root), str(self.root))]
        lines.append(_words("mount", "-o", "remount,bind,ro", str(self.root)))
        lines.append(_words("mount", "-t", "proc", "proc", str(self._place("/proc"))))
        lines += self._read_only("/sys", Path("/sys"))
        devices = str(self._place("/dev"))
        lines.append(_words("mount", "-t", "tmpfs", "-o", "mode=755", "devices", devices))
        for name in _DEVICES:
            lines.append(_words("touch", f"{devices}/{name}"))
            lines.append(_words("mount", "--bind", f"/dev/{name}", f"{devices}/{name}"))
        lines.append(_words("mount", "-o", "remount,ro", devices))
        for path, directory in self.volumes.items():
            lines.append(_words("mount", "--bind", str(directory), str(self._place(path))))
        for path, source in self.files.items():
            lines += self._read_only(path, source)
        become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
        become += ["--bounding-set=-all", "--inh-caps=-all"]
        variables = [f"{name}={value}" for name, value in environment.items()]
        inside = ["chroot", str(self.root), *become, "env", "-i", *variables, *command]
        lines.append(f"PATH={_SEARCH_PATH} exec {_words(*inside)}")
        return ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", "\n".join(lines)]

    def _place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _read_only(self, path: str, source: Path) -> list[str]:
        place = str(self._place(path))
        return [_words("mount", "--rbind", str(source), place), _words("mount", "-o", "remount,bind,ro", place)]


def make_volume(directory: Path) -> Path:
    """An empty directory as a pod with `fsGroup` gets one."""
    directory.mkdir(parents=True)
    os.chown(directory, 0, USER)
    directory.chmod(0o2775)
    return directory


def _words(*words: str) -> str:
    return shlex.join(words)

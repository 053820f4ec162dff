"""Builds the images on a machine without a container engine, and runs commands in them.

buildah keeps layers as plain directories and runs steps by chroot; a Debian of debootstrap stands in for the public
image of Python, whose version it shares. Needs root, and the Debian packages buildah and debootstrap.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.k8s.rendering import K8S

_ROOT = K8S.parent
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_MIRROR = "http://deb.debian.org/debian"
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_SECONDS = 1800


class ImageStore:
    """Images in a directory.

    Args:
        directory: empty.
    """

    def __init__(self, directory: Path) -> None:
        for program in ("buildah", "debootstrap"):
            assert shutil.which(program), f"{program} is missing; run `apt-get install buildah debootstrap`"
        assert os.geteuid() == 0, "images are built by root here"
        self._directory = directory
        self._built: set[str] = set()
        self._containers: dict[str, str] = {}
        self._roots: dict[str, Path] = {}
        self._store = ["--root", str(directory / "storage"), "--runroot", str(directory / "run")]
        self._store += ["--storage-driver", "vfs"]

    def make_base(self) -> None:
        """Make the stand-in under the name that the Dockerfile builds on."""
        found = re.search(r"^ARG PYTHON_IMAGE=(.+)$", (_ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
        assert found is not None
        release = found[1].rpartition("-")[2]
        root = self._directory / "debian"
        _run(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", release, str(root), _MIRROR])
        (root / "usr/bin/python").symlink_to("python3")
        for rest in ("var/lib/apt/lists", "var/cache/apt"):
            shutil.rmtree(root / rest)
        container = self._buildah("from", "scratch")
        self._buildah("add", "--quiet", container, str(root), "/")
        self._buildah("commit", "--quiet", container, f"docker.io/library/{found[1]}")
        self._buildah("rm", container)

    def build(self, target: str) -> str:
        """Build a target of the Dockerfile, unless it is there; gives the name of the image."""
        name = f"localhost/specdec-{target}:test"
        if name in self._built:
            return name
        volumes = [each for path, source in self.pip_files().items() for each in ("--volume", f"{source}:{path}:ro")]
        # No layers in between: each would be a copy of everything, torch included.
        arguments = ["--isolation", "chroot", "--format", "docker", "--pull-never", "--quiet", *volumes]
        self._buildah("build", *arguments, "--target", target, "--tag", name, str(_ROOT))
        self._built.add(name)
        return name

    def pip_files(self) -> dict[str, Path]:
        """What pip of this machine reads from, by the path where a pip in a container finds it."""
        files = {str(_AUTHORITIES): _AUTHORITIES}
        if links := os.environ.get("PIP_FIND_LINKS"):
            settings = self._directory / "pip.conf"
            settings.write_text(f"[global]\nfind-links = {links}\n", encoding="utf-8")
            files |= {"/etc/pip.conf": settings, links: Path(links)}
        return files

    def files(self, image: str) -> Path:
        """Where the files of the image's one container are."""
        if image not in self._roots:
            self._roots[image] = Path(self._buildah("mount", self._container(image)))
        return self._roots[image]

    def configuration(self, image: str) -> dict[str, Any]:
        """What the image says of how it is run."""
        described = json.loads(self._buildah("inspect", "--type", "image", image))
        configuration: dict[str, Any] = described["Docker"]["config"]
        return configuration

    def run(self, image: str, command: Sequence[str]) -> str:
        """What a command says in a container of the image, as its user. An image has one container: it is a copy of it.

        Raises:
            AssertionError: the command fails.
        """
        return self._buildah("run", "--isolation", "chroot", self._container(image), "--", *command)

    def _container(self, image: str) -> str:
        if image not in self._containers:
            self._containers[image] = self._buildah("from", "--pull-never", image)
        return self._containers[image]

    def _buildah(self, command: str, *arguments: str) -> str:
        return _run(["buildah", *self._store, command, *arguments])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()

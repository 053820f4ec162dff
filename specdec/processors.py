"""The processors that a process may use: those it may run on, and the share of them that its cgroups grant."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_CPU_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_MAX_CPU = 4095


def choose_num_threads(setting: int, default: int) -> int:
    """Threads of a forward pass.

    More threads than processors wait for each other, and above the quota of a cgroup all of them are stopped for the
    rest of each period. PyTorch knows the affinity but not the quota.

    Args:
        setting: the operator's number; 0: none.
        default: what PyTorch chose by itself.
    """
    if setting:
        return setting
    if os.environ.get("OMP_NUM_THREADS"):
        return default
    return max(1, min(default, int(num_processors())))


def num_processors(root: Path = Path("/")) -> float:
    """Processors' worth of time that this process can get; a quota may be a fraction.

    Args:
        root: of the file system, for tests.
    """
    quotas = [quota for quota in _quotas(root) if quota is not None]
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def parse_cpus(text: str) -> frozenset[int]:
    """Numbers of CPUs, from a list such as 0,2-5.

    Raises:
        ValueError: it is not such a list, or this process may not run on one of them.
    """
    if not _CPU_LIST.fullmatch(text):
        raise ValueError(f"{text!r} is no list of CPUs such as 0,2-5")
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(first) > int(last or first) or int(last or first) > _MAX_CPU:
            raise ValueError(f"{part} is no range of CPUs")
        cpus.update(range(int(first), int(last or first) + 1))
    usable = os.sched_getaffinity(0)
    if not cpus <= usable:
        raise ValueError(f"CPU {min(cpus - usable)} is not among those of this process, {sorted(usable)}")
    return frozenset(cpus)


def run_on(text: str) -> None:
    """Have this thread, and all that it starts from now on, run on these CPUs only; an empty list changes nothing."""
    if text:
        os.sched_setaffinity(0, parse_cpus(text))


def _quotas(root: Path) -> Iterator[float | None]:
    """Processors granted by each cgroup of this process and those around it; None: without a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, read = root / "sys/fs/cgroup", _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = root / "sys/fs/cgroup" / controllers, _quota_v1
            if not base.is_dir():
                base = root / "sys/fs/cgroup/cpu"
        else:
            continue
        # In a container the path may be the host's, and what is mounted the group itself: then only the base is there.
        inside = base / path.lstrip("/")
        for directory in (inside, *inside.parents):
            if directory == base or base in directory.parents:
                yield read(directory)


def _quota_v2(directory: Path) -> float | None:
    try:
        quota, period = (directory / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        # "max", or the root group, which has no such file.
        return None


def _quota_v1(directory: Path) -> float | None:
    try:
        quota = int((directory / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((directory / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None

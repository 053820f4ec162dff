"""How much memory of a device is free for key-value blocks."""

from __future__ import annotations

import re
from pathlib import Path

import torch

_CGROUP_V2 = ("memory.max", "memory.current", "inactive_file")
_CGROUP_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_memory_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Bytes that may still be taken: of a GPU what its driver says, else the least that machine and cgroup leave.

    Args:
        device: where the blocks will be.
        root: of the file system, for tests.
    """
    if device.type == "cuda":
        free_bytes: int = torch.cuda.mem_get_info(device)[0]
        return free_bytes
    meminfo = (root / "proc/meminfo").read_text(encoding="ascii")
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    free = [1024 * int(available[1])] if available else []
    for directory, names in _memory_cgroups(root):
        left = _left_in_cgroup(directory, *names)
        if left is not None:
            free.append(left)
    return min(free, default=0)


def _memory_cgroups(root: Path) -> list[tuple[Path, tuple[str, str, str]]]:
    """This process's memory cgroup and those around it, with the names of their files."""
    found = []
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", _CGROUP_V2
        elif "memory" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/memory", _CGROUP_V1
        else:
            continue
        # In a container the path may be the host's, and what is mounted the group itself: then only the base is there.
        inside = base / path.lstrip("/")
        found += [(each, names) for each in (inside, *inside.parents) if each == base or base in each.parents]
    return found


def _left_in_cgroup(directory: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int | None:
    """Bytes below the limit of one group, counting what the kernel can drop at once; None: there is no limit."""
    try:
        limit = (directory / limit_name).read_text(encoding="ascii").strip()
        usage = int((directory / usage_name).read_text(encoding="ascii"))
        statistics = (directory / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    reclaimable = re.search(rf"^{reclaimable_name} (\d+)$", statistics, re.MULTILINE)
    return max(int(limit) - usage + (int(reclaimable[1]) if reclaimable else 0), 0)

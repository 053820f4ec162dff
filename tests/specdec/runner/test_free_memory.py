"""Free memory: what the machine and the cgroups leave, whichever is less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec.runner.free_memory import free_memory_bytes

CPU = torch.device("cpu")
GIB = 1 << 30


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    everything = {
        "proc/meminfo": "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n",
        "proc/self/cgroup": cgroup,
        **files,
    }
    for name, content in everything.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def v2(directory: str, limit: str, usage: int, inactive: int = 0) -> dict[str, str]:
    return {
        f"{directory}/memory.max": f"{limit}\n",
        f"{directory}/memory.current": f"{usage}\n",
        f"{directory}/memory.stat": f"anon 5\ninactive_file {inactive}\n",
    }


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, 16 * GIB),
        ("0::/\n", v2("sys/fs/cgroup", "max", GIB), 16 * GIB),
        ("0::/\n", v2("sys/fs/cgroup", str(4 * GIB), GIB), 3 * GIB),
        ("0::/\n", v2("sys/fs/cgroup", str(4 * GIB), 3 * GIB, GIB), 2 * GIB),
        ("0::/\n", v2("sys/fs/cgroup", str(GIB), 2 * GIB), 0),
        ("0::/\n", v2("sys/fs/cgroup", str(64 * GIB), GIB), 16 * GIB),
        # The group around it is the tighter one.
        (
            "0::/pods/this\n",
            {
                **v2("sys/fs/cgroup/pods/this", str(8 * GIB), GIB),
                **v2("sys/fs/cgroup/pods", str(6 * GIB), 4 * GIB),
            },
            2 * GIB,
        ),
        # In a container the path is the host's, and the group itself is mounted.
        ("0::/kubepods/pod1/abc\n", v2("sys/fs/cgroup", str(4 * GIB), GIB), 3 * GIB),
        (
            "9:cpu:/x\n4:memory:/x\n",
            {
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": str(2 * GIB),
                "sys/fs/cgroup/memory/x/memory.usage_in_bytes": str(GIB),
                "sys/fs/cgroup/memory/x/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB // 2}\n",
            },
            3 * GIB // 2,
        ),
    ],
)
def test_the_least_that_is_left(tmp_path: Path, cgroup: str, files: dict[str, str], expected: int) -> None:
    assert free_memory_bytes(CPU, machine(tmp_path, cgroup, files)) == expected


def test_a_machine_without_cgroups(tmp_path: Path) -> None:
    root = machine(tmp_path, "", {})
    (root / "proc/self/cgroup").unlink()
    assert free_memory_bytes(CPU, root) == 16 * GIB


def test_this_machine_has_some() -> None:
    assert 0 < free_memory_bytes(CPU) < 1 << 50


@pytest.mark.gpu
def test_a_gpu_says_itself() -> None:
    assert 0 < free_memory_bytes(torch.device("cuda", 0)) <= torch.cuda.mem_get_info(0)[1]

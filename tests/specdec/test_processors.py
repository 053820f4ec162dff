"""Threads by affinity and quota, with the files that cgroups of both versions have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specdec import processors
from specdec.processors import choose_num_threads, num_processors, parse_cpus, run_on


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def file_system(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


V1 = "4:cpu,cpuacct:/pod/box\n3:memory:/pod/box\n"

CASES: dict[str, tuple[dict[str, str], float]] = {
    "no_cgroups": ({}, 8.0),
    "v2_without_a_limit": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8.0),
    "v2_in_a_container": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
    "v2_of_a_group_above": (
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
        },
        3.0,
    ),
    "v2_path_of_the_host": (
        {"proc/self/cgroup": "0::/kubepods/pod/box\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"},
        0.5,
    ),
    "v2_more_than_there_is": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 8.0),
    "v1": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu,cpuacct/pod/box/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu,cpuacct/pod/box/cpu.cfs_period_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
        },
        2.0,
    ),
    "v1_mounted_as_cpu": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        1.0,
    ),
    "v1_without_a_limit": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        8.0,
    ),
    "nonsense": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "lots\n"}, 8.0),
}


@pytest.mark.parametrize(("files", "expected"), CASES.values(), ids=CASES)
def test_processors_of_a_cgroup(tmp_path: Path, files: dict[str, str], expected: float) -> None:
    assert num_processors(file_system(tmp_path, files)) == expected


def test_affinity_counts_where_it_is_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    files, _ = CASES["v2_in_a_container"]
    assert num_processors(file_system(tmp_path, files)) == 1


@pytest.mark.parametrize(
    ("setting", "variable", "quota", "expected"),
    [
        (3, None, 1.0, 3),
        (0, None, 2.5, 2),
        (0, None, 0.5, 1),
        # PyTorch counts cores, and not the two threads of each.
        (0, None, 8.0, 4),
        (0, "4", 2.0, 4),
        (1, "4", 2.0, 1),
    ],
)
def test_the_setting_wins_then_the_variable_then_what_can_be_used(
    monkeypatch: pytest.MonkeyPatch, setting: int, variable: str | None, quota: float, expected: int
) -> None:
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(processors, "num_processors", lambda: quota)
    assert choose_num_threads(setting, default=4) == expected


@pytest.mark.parametrize(("text", "expected"), [("0", {0}), ("0,2", {0, 2}), ("2-4,7", {2, 3, 4, 7}), ("1-1,1", {1})])
def test_lists_of_cpus(text: str, expected: set[int]) -> None:
    assert parse_cpus(text) == expected


@pytest.mark.parametrize("text", ["", "a", "0,", "-1", "0 1", "3-2", "0-99999999", "8", "0-8", "7,8"])
def test_lists_that_are_none_or_name_cpus_that_are_not_there(text: str) -> None:
    with pytest.raises(ValueError, match="CPU"):
        parse_cpus(text)


def test_running_on_some_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[frozenset[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: set_to.append(cpus))
    run_on("")
    run_on("1-2")
    assert set_to == [{1, 2}]

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from specdec.models import cache
from specdec.models.errors import ModelError


def write_whole(directory: Path) -> None:
    (directory / "file").write_text("whole")


def never(directory: Path) -> None:
    pytest.fail(f"{directory} was filled again")


def test_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("SPECDEC_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.models_directory() == Path("/home/someone/.cache/specdec/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.models_directory() == Path("/xdg/specdec/models")
    monkeypatch.setenv("SPECDEC_CACHE", "~/own")
    assert cache.models_directory() == Path("/home/someone/own/models")


def test_entry_is_made_once(empty_cache: Path) -> None:
    assert cache.entry_directory("entry") is None
    made = cache.make_entry("entry", write_whole, room_bytes=0)
    assert made == empty_cache / "entry"
    assert (made / "file").read_text() == "whole"
    assert cache.entry_directory("entry") == made
    assert cache.make_entry("entry", never, room_bytes=0) == made


def test_complete_entry_needs_no_writing(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.make_entry("entry", write_whole, room_bytes=0)
    (empty_cache / "entry.lock").unlink()
    cache.make_entry("entry", never, room_bytes=1 << 60)
    assert not (empty_cache / "entry.lock").exists()


def test_failure_leaves_nothing_that_is_trusted(empty_cache: Path) -> None:
    def fail(directory: Path) -> None:
        write_whole(directory)
        raise ModelError("refused")

    with pytest.raises(ModelError, match="refused"):
        cache.make_entry("entry", fail, room_bytes=0)
    assert cache.entry_directory("entry") is None
    assert [path.name for path in empty_cache.iterdir()] == ["entry.lock"]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no room is left on disk .* SPECDEC_CACHE"),
        (errno.EDQUOT, "no room is left on disk"),
        (errno.EROFS, "cannot be used .*Read-only.* SPECDEC_CACHE to a writable directory"),
    ],
)
def test_error_of_the_file_system(empty_cache: Path, number: int, message: str) -> None:
    def fail(directory: Path) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(ModelError, match=message):
        cache.make_entry("entry", fail, room_bytes=0)
    assert cache.entry_directory("entry") is None


def test_cache_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be used"):
        cache.make_entry("entry", never, room_bytes=0)


@pytest.mark.usefixtures("empty_cache")
def test_room_is_checked_before_the_work() -> None:
    with pytest.raises(ModelError, match=r"has room for [\d,]+ MB and 1,000,000,000 MB are needed; free some, or set"):
        cache.make_entry("entry", never, room_bytes=10**15)


def test_wait_for_another_process_is_bounded(empty_cache: Path) -> None:
    empty_cache.mkdir(parents=True)
    with (
        FileLock(empty_cache / "entry.lock"),
        pytest.raises(ModelError, match=r"another process has been preparing .*; wait for it or end it"),
    ):
        cache.make_entry("entry", never, room_bytes=0, wait_seconds=0.1)


# A slow converter for processes of their own: notes each run, then takes its time half-way.
SLOW_CONVERTER = """
import sys, time
from pathlib import Path
from specdec.models import cache

def fill(directory):
    with open(sys.argv[1], "a") as runs:
        runs.write("run\\n")
    (directory / "first").write_text("whole")
    time.sleep(float(sys.argv[2]))
    (directory / "second").write_text("whole")

entry = cache.make_entry("entry", fill, room_bytes=0)
assert {path.name: path.read_text() for path in entry.iterdir()} == {"first": "whole", "second": "whole"}
"""


def start_slow_converter(runs: Path, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SLOW_CONVERTER, str(runs), str(seconds)])


@pytest.mark.usefixtures("empty_cache")
def test_processes_that_start_together_do_the_work_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    processes = [start_slow_converter(runs, 1.0) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert runs.read_text() == "run\n"


def test_killed_conversion_is_not_trusted(empty_cache: Path, tmp_path: Path) -> None:
    process = start_slow_converter(tmp_path / "runs", 60.0)
    deadline = time.monotonic() + 60
    while not (empty_cache / "entry.partial" / "first").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    assert cache.entry_directory("entry") is None
    made = cache.make_entry("entry", write_whole, room_bytes=0)
    assert [path.name for path in made.iterdir()] == ["file"]
    assert not (empty_cache / "entry.partial").exists()

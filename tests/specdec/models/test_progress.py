import io
import logging
import sys
import time
from pathlib import Path

import pytest

from specdec.models import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_log_line_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    report = progress.default_report()
    with caplog.at_level(logging.INFO), report("fetching something", 100) as advance:
        for completed in range(100):
            advance(completed)
    assert caplog.messages == ["fetching something"]
    assert capfd.readouterr() == ("", "")


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with caplog.at_level(logging.INFO), progress.default_report()("fetching something", 200) as advance:
        advance(100)
        advance(1000)
    assert "fetching something" in terminal.getvalue()
    assert "100%" in terminal.getvalue()
    assert caplog.messages == []


def test_growth_of_a_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "before").write_bytes(bytes(1000))
    seen: list[int] = []
    with progress.watching_growth(tmp_path, seen.append):
        (tmp_path / "below").mkdir()
        (tmp_path / "below" / "file").write_bytes(bytes(500))
        (tmp_path / "link").symlink_to(tmp_path / "before")
        deadline = time.monotonic() + 10
        while 500 not in seen and time.monotonic() < deadline:
            time.sleep(0.05)
    assert set(seen) <= {0, 500}
    assert seen[-1] == 500


def test_directory_that_is_not_there_has_no_bytes(tmp_path: Path) -> None:
    assert progress.directory_bytes(tmp_path / "nothing") == 0

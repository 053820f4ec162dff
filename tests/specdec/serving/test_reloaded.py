from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from specdec.serving.reloaded import Reloaded, keep_fresh
from specdec.serving.security_error import SecurityError
from tests.orchestrator.serving import until


def number_in(path: Path) -> Reloaded[str, int]:
    def read() -> str:
        try:
            return path.read_text()
        except OSError:
            raise SecurityError("it is gone") from None

    def parse(text: str) -> int:
        if not text.isdecimal():
            raise SecurityError("it is no number")
        return int(text)

    return Reloaded("the number", read, parse)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "ERROR"]


async def test_a_change_is_seen_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    number = number_in(path)
    task = asyncio.create_task(keep_fresh([number], period_seconds=0.01))
    path.write_text("2")
    await until(lambda: number.value == 2)
    path.unlink()
    await asyncio.sleep(0.05)
    path.write_text("3")
    await until(lambda: number.value == 3)
    task.cancel()


def test_what_cannot_be_used_now_is_refused_now(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="it is gone"):
        number_in(tmp_path / "number")


def test_a_broken_file_keeps_the_value_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    number = number_in(path)
    path.write_text("x")
    number.refresh()
    # It may be in the middle of being written.
    assert errors(caplog) == []
    for _ in range(5):
        number.refresh()
    assert errors(caplog) == ["the number stays as it was: it is no number"]
    path.unlink()
    for _ in range(5):
        number.refresh()
    assert errors(caplog)[1:] == ["the number stays as it was: it is gone"]
    assert number.value == 1
    path.write_text("2")
    number.refresh()
    assert number.value == 2
    path.write_text("x")
    for _ in range(2):
        number.refresh()
    assert len(errors(caplog)) == 3


async def test_a_bug_in_one_does_not_keep_the_others_from_being_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def refresh(self) -> None:
            raise RuntimeError("a bug")

    path = tmp_path / "number"
    path.write_text("1")
    number = number_in(path)
    task = asyncio.create_task(keep_fresh([Broken(), number], period_seconds=0.01))
    path.write_text("2")
    await until(lambda: number.value == 2)
    task.cancel()
    assert errors(caplog)


def test_a_change_is_logged_without_what_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "number"
    path.write_text("123456")
    number = number_in(path)
    path.write_text("654321")
    number.refresh()
    number.refresh()
    assert [record.message for record in caplog.records] == ["the number has changed and was read again"]

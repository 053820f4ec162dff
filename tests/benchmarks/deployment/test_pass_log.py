from pathlib import Path

import pytest

from benchmarks.deployment.pass_log import Pass, PassLog, PassReader, busy_seconds


def a_pass(started: float, ended: float) -> Pass:
    return Pass(started, ended, 0.5, 0.25, 0.125, 0.0625, 0.03125, 3, 15)


FIRST, SECOND, THIRD = a_pass(1, 2), a_pass(2, 4), a_pass(5, 6)


def test_a_log_is_read_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = PassReader(path)
    assert reader.between(0, 10) == []
    log = PassLog(path)
    log.add(FIRST)
    assert reader.between(0, 10) == [FIRST]
    log.add(SECOND)
    log.add(THIRD)
    assert reader.between(1.5, 5) == [FIRST, SECOND]
    assert reader.between(3, 5.5) == [SECOND, THIRD]


def test_half_a_record_waits_for_the_other_half(tmp_path: Path) -> None:
    path, whole = tmp_path / "log", tmp_path / "whole"
    PassLog(whole).add(FIRST)
    data = whole.read_bytes()
    path.write_bytes(data[:20])
    reader = PassReader(path)
    assert reader.between(0, 10) == []
    path.write_bytes(data)
    assert reader.between(0, 10) == [FIRST]


def test_only_what_lies_within_the_time_is_busy() -> None:
    assert busy_seconds([FIRST, SECOND, THIRD], 1.5, 5.25) == pytest.approx(0.5 + 2 + 0.25)
    assert busy_seconds([], 0, 1) == 0

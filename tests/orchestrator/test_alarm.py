"""One timer for many waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.alarm import Alarm

SECONDS = 0.05


class Rings:
    """When the alarm went off, since it was made."""

    def __init__(self) -> None:
        self._began = asyncio.get_running_loop().time()
        self.seconds: list[float] = []
        self.alarm = Alarm(lambda: self.seconds.append(asyncio.get_running_loop().time() - self._began))


async def test_it_goes_off_once_and_not_early() -> None:
    rings = Rings()
    rings.alarm.start(SECONDS)
    await asyncio.sleep(4 * SECONDS)
    (seconds,) = rings.seconds
    assert seconds >= SECONDS - 0.001


async def test_a_later_wait_is_not_cut_by_the_timer_of_an_earlier_one() -> None:
    rings = Rings()
    rings.alarm.start(SECONDS)
    rings.alarm.stop()
    rings.alarm.start(3 * SECONDS)
    await asyncio.sleep(6 * SECONDS)
    (seconds,) = rings.seconds
    assert seconds >= 3 * SECONDS - 0.001


async def test_a_shorter_wait_does_not_have_to_wait_for_a_longer_timer() -> None:
    rings = Rings()
    rings.alarm.start(60)
    rings.alarm.start(SECONDS)
    await asyncio.sleep(4 * SECONDS)
    assert len(rings.seconds) == 1


@pytest.mark.parametrize("end", [Alarm.stop, Alarm.close])
async def test_it_does_not_go_off_once_it_is_stopped(end: Callable[[Alarm], None]) -> None:
    rings = Rings()
    rings.alarm.start(SECONDS)
    end(rings.alarm)
    await asyncio.sleep(3 * SECONDS)
    assert not rings.seconds


async def test_waits_that_end_in_time_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def counting(when: float, callback: Callable[..., Any], *arguments: Any) -> asyncio.TimerHandle:
        timers.append(call_at(when, callback, *arguments))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", counting)
    alarm = Alarm(lambda: None)
    for _ in range(100):
        alarm.start(60)
        alarm.stop()
    assert len(timers) == 1
    alarm.close()
    assert timers[0].cancelled()

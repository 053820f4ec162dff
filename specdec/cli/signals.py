"""Ctrl-C and SIGTERM while something asynchronous runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedBySignal(Exception):
    """The work was cancelled because this process was asked to end."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.exit_status = 128 + number
        """Status that a shell expects of a program ended by that signal."""


async def until_signal(work: Coroutine[Any, Any, Result]) -> Result:
    """Do the work; the first signal cancels it, and a second one cancels its cleaning up as well.

    Raises:
        StoppedBySignal: the work was cancelled by a signal and has ended.
    """
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise StoppedBySignal(received[0]) from None
        raise
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)

"""A timer for what hardly ever takes too long."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """Goes off unless it is stopped in time, again and again for one wait after the other.

    A timer of the event loop costs microseconds to make and to cancel, and nearly every wait of a round ends long
    before its time. So there is one timer for many waits: it is left to run, and when its time has come, it looks when
    the wait of then is due.

    Args:
        ring: called on the event loop when a wait has taken too long.
    """

    __slots__ = ("_due", "_ring", "_timer")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Go off in so many seconds, and not when it was due before."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(self._due, self._look, loop)

    def stop(self) -> None:
        """Do not go off; it may be started again."""
        self._due = math.inf

    def close(self) -> None:
        """Stop, and leave nothing behind in the event loop."""
        self.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """The timer's time has come; that of the wait is the same or later, or there is none."""
        timer, self._timer = self._timer, None
        if timer is None or self._due == math.inf:
            return
        if self._due <= timer.when():
            self.stop()
            self._ring()
        else:
            self._timer = loop.call_at(self._due, self._look, loop)

"""One stream's side of an engine: where its events go."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Connection(Generic[Event]):
    """Carries events from the engine's thread to the event loop of the stream that waits for them.

    Made on that loop. A peer that leaves more than `limit` events unread is cut off: `is_overrun` says so.
    """

    def __init__(self, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._events: list[Event] = []
        self._ready = asyncio.Event()
        self._is_closed = False
        self.is_overrun = False

    @property
    def num_unread(self) -> int:
        """Events that wait to be taken. May be read from any thread."""
        return len(self._events)

    async def next_events(self) -> list[Event] | None:
        """All events that are ready; none if it was only woken; None once the connection is closed."""
        await self._ready.wait()
        if self._is_closed:
            return None
        self._ready.clear()
        events, self._events = self._events, []
        return events

    def close_soon(self) -> None:
        """`close`, from any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        """No further events are wanted; wakes `next_events`. On the event loop."""
        self._is_closed = True
        self._events.clear()
        self._ready.set()

    def wake(self) -> None:
        """Have `next_events` return now, with events or without. On the event loop."""
        self._ready.set()

    def send(self, events: list[Event]) -> None:
        """Deliver events; from any thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: the process goes down and nobody waits.
            self._loop.call_soon_threadsafe(self._deliver, events)

    def _deliver(self, events: list[Event]) -> None:
        if self._is_closed:
            return
        self._events.extend(events)
        if len(self._events) > self._limit:
            self.is_overrun = True
            self.close()
        self._ready.set()

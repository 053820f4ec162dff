"""A connection for engines that are driven by hand: no event loop, and every event is kept."""

from __future__ import annotations

from typing import Generic, TypeVar

from specdec.engine.connection import Connection

Event = TypeVar("Event")


class RecordingConnection(Connection[Event], Generic[Event]):
    """Keeps what the engine sends."""

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []
        self.num_left = 0
        """What is said to be unread."""

    @property
    def num_unread(self) -> int:
        return self.num_left

    def send(self, events: list[Event]) -> None:
        self.batches.append(list(events))

    def take(self) -> list[Event]:
        """The events since the last call."""
        events = [event for batch in self.batches for event in batch]
        self.batches.clear()
        return events

"""A stream between a peer and an engine that answers each command with itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence

from specdec.engine.stream import Arrival, run_stream
from specdec.engine.thread import EngineThread
from specdec.v1.draft_pb2 import DraftEvent

SECONDS = 5.0


class Echo:
    """Answers each command with itself, once it is let go."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival[int, DraftEvent]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.copies = 1
        self.num_bytes = 0
        self.fails = False

    def handle(self, commands: Sequence[Arrival[int, DraftEvent]]) -> None:
        self.arrivals += commands
        for connection, command, _ in commands:
            if command is not None:
                event = DraftEvent(round=command, sequence_id=bytes(self.num_bytes))
                connection.send([event] * self.copies)

    patience_seconds = 0.0

    def step(self) -> bool:
        assert self.go_on.wait(SECONDS)
        if self.fails:
            raise RuntimeError("device lost")
        return False


class Peer:
    """The orchestrator's side: messages are lists of commands."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[list[int] | BaseException | None] = asyncio.Queue()
        self.num_read = 0

    def send(self, *messages: list[int]) -> None:
        for message in messages:
            self._queue.put_nowait(message)

    def end(self, error: BaseException | None = None) -> None:
        self._queue.put_nowait(error)

    async def messages(self) -> AsyncIterator[list[int]]:
        while (message := await self._queue.get()) is not None:
            if isinstance(message, BaseException):
                raise message
            self.num_read += 1
            yield message


def open_stream(peer: Peer, thread: EngineThread[Arrival[int, DraftEvent]]) -> AsyncIterator[list[DraftEvent]]:
    return run_stream(peer.messages(), lambda message: message, thread)


async def receive(events: AsyncIterator[list[DraftEvent]], count: int) -> list[int]:
    received: list[int] = []
    while len(received) < count:
        received += [event.round for event in await asyncio.wait_for(anext(events), SECONDS)]
    return received


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.002)


async def assert_sequences_are_forgotten(engine: Echo) -> None:
    """The engine was told that the stream is over, after all of its commands, and nothing is left running."""
    await until(lambda: bool(engine.arrivals) and engine.arrivals[-1].command is None)
    assert [arrival.command for arrival in engine.arrivals].count(None) == 1
    assert len({id(arrival.connection) for arrival in engine.arrivals}) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}

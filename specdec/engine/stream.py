"""A bidirectional stream between an orchestrator and an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from specdec.engine.connection import Connection
from specdec.engine.thread import EngineThread
from specdec.errors import Refusal, ResourceExhaustedError, UnavailableError

Message = TypeVar("Message")
Command = TypeVar("Command")
Event = TypeVar("Event", bound=ProtobufMessage)

_MAX_BACKLOG = 4096
"""Commands that may wait for the engine before streams are not read any further."""
_MAX_BACKLOG_BYTES = 64 << 20
"""And their bytes."""
_COMMANDS_AT_ONCE = 256
"""Commands of a message that are taken before others have their turn on the event loop: one may hold many thousand."""
_MAX_STREAMS = 256
"""Streams of a service: one for each orchestrator. Sequences are bounded by themselves, but one may well have none."""
_MAX_UNREAD_EVENTS = 4096
_MAX_EVENTS_A_MESSAGE = 256
_MAX_MESSAGE_BYTES = 4 << 20
"""A message is not made larger than gRPC's customary limit; one event may be."""
_NEWS_SECONDS = 1.0
_FRAME_BYTES = 6
"""Most that an event's tag and length take in a message."""


class Arrival(NamedTuple, Generic[Command, Event]):
    """A command as the engine gets it."""

    connection: Connection[Event]
    command: Command | None
    """None: the stream has ended and its sequences are to be forgotten."""
    arrived: float
    """When it was read from the stream, in seconds of `time.perf_counter`."""


async def run_stream(
    messages: AsyncIterator[Message],
    commands_of: Callable[[Message], Iterable[Command]],
    thread: EngineThread[Arrival[Command, Event]],
    has_news: Callable[[], bool] = lambda: False,
    weigh: Callable[[Command], int] = lambda _: 1,
) -> AsyncIterator[list[Event]]:
    """Feed the engine what arrives and yield what it answers, everything that is ready at once.

    However the stream ends, its sequences end with it: a request stream that simply stops is an abort.

    Args:
        messages: of the peer.
        commands_of: the commands in a message.
        thread: runs the engine.
        has_news: whether there is something to tell besides answers; asked at the start and every second. An empty list
            is yielded then, unless answers are due anyway.
        weigh: as how many commands one counts: it may ask for many things at once.

    Raises:
        ResourceExhaustedError: the peer does not read its events, or there are too many streams.
        UnavailableError: the engine failed.
        Refusal: what reading the messages raised, such as that one is none.
    """
    if thread.num_watchers >= _MAX_STREAMS:
        raise ResourceExhaustedError(f"{_MAX_STREAMS} streams are open, which is the limit; use another replica")
    connection: Connection[Event] = Connection(_MAX_UNREAD_EVENTS)

    async def has_room() -> None:
        while thread.backlog > _MAX_BACKLOG or thread.backlog_bytes > _MAX_BACKLOG_BYTES:  # noqa: ASYNC110 - rare, and the engine stays free of asyncio
            await asyncio.sleep(0.005)

    async def read() -> None:
        try:
            async for message in messages:
                arrived = time.perf_counter()
                num_bytes = message.ByteSize() if isinstance(message, ProtobufMessage) else 0
                # Together, or the engine would wake for the first one and take the others one by one.
                for part, weight in _at_once(commands_of(message), weigh):
                    arrivals = [Arrival(connection, each, arrived) for each in part]
                    # Each of them holds all of the message.
                    thread.submit(*arrivals, weight=weight, num_bytes=num_bytes)
                    num_bytes = 0
                    if weight >= _COMMANDS_AT_ONCE:
                        await asyncio.sleep(0)
                    await has_room()
        finally:
            connection.close()

    async def tell_news() -> None:
        while True:
            if has_news():
                connection.wake()
            await asyncio.sleep(_NEWS_SECONDS)

    tasks = [asyncio.create_task(read()), asyncio.create_task(tell_news())]
    try:
        with thread.watched(connection.close_soon):
            while (events := await connection.next_events()) is not None:
                for part in _parts(events) if events else [events]:
                    yield part
        reader = tasks[0]
        if reader.done() and not reader.cancelled() and isinstance(problem := reader.exception(), Refusal):
            raise problem
        if thread.failure is not None:
            raise UnavailableError("the engine of this service has failed; use another replica")
        if connection.is_overrun:
            raise ResourceExhaustedError(f"more than {_MAX_UNREAD_EVENTS} events were left unread; read the stream")
    finally:
        thread.submit(Arrival(connection, None, time.perf_counter()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # a broken stream is no news: its sequences go with it


def _at_once(commands: Iterable[Command], weigh: Callable[[Command], int]) -> Iterator[tuple[list[Command], int]]:
    """Cut commands into parts that the engine may take at once, with the weight of each."""
    part: list[Command] = []
    weight = 0
    for command in commands:
        part.append(command)
        weight += weigh(command)
        if weight >= _COMMANDS_AT_ONCE:
            yield part, weight
            part, weight = [], 0
    if part:
        yield part, weight


def _parts(events: list[Event]) -> Iterator[list[Event]]:
    """Events for one message each."""
    part: list[Event] = []
    num_bytes = 0
    for event in events:
        size = event.ByteSize() + _FRAME_BYTES
        if part and (len(part) == _MAX_EVENTS_A_MESSAGE or num_bytes + size > _MAX_MESSAGE_BYTES):
            yield part
            part, num_bytes = [], 0
        part.append(event)
        num_bytes += size
    yield part

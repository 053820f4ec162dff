"""A stream feeds the engine, yields its answers, and whatever ends it takes its sequences along."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest

from specdec.engine import stream
from specdec.engine.stream import Arrival, run_stream
from specdec.engine.thread import EngineThread
from specdec.errors import InvalidArgumentError, ResourceExhaustedError, UnavailableError
from specdec.v1.draft_pb2 import DraftEvent, ProposeResponse

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


@pytest.fixture
def engine() -> Echo:
    return Echo()


@pytest.fixture
def thread(engine: Echo) -> Iterator[EngineThread[Arrival[int, DraftEvent]]]:
    thread = EngineThread(engine, "test-engine")
    thread.start()
    yield thread
    engine.go_on.set()
    assert thread.stop(SECONDS)


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


async def test_commands_reach_the_engine_in_order_and_answers_come_back(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]]
) -> None:
    peer = Peer()
    events = open_stream(peer, thread)
    before = time.perf_counter()
    peer.send([1, 2], [3])
    assert await receive(events, 3) == [1, 2, 3]
    peer.send([4])
    assert await receive(events, 1) == [4]
    assert [arrival.command for arrival in engine.arrivals] == [1, 2, 3, 4]
    assert all(before < arrival.arrived < time.perf_counter() for arrival in engine.arrivals)
    peer.end()
    with pytest.raises(StopAsyncIteration):
        await receive(events, 1)
    await assert_sequences_are_forgotten(engine)


async def test_what_is_ready_travels_together_in_bounded_messages(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_EVENTS_A_MESSAGE", 4)
    engine.copies = 10
    peer = Peer()
    events = open_stream(peer, thread)
    peer.send([7])
    sizes = [len(await asyncio.wait_for(anext(events), SECONDS)) for _ in range(3)]
    assert sizes == [4, 4, 2]
    peer.end()
    with pytest.raises(StopAsyncIteration):
        await receive(events, 1)


@pytest.mark.parametrize(
    ("num_bytes", "copies", "expected"),
    [
        (1 << 20, 6, [3, 3]),
        # Each event has a tag and a length of its own in a message: four of these are just too large.
        ((1 << 20) - 10, 6, [3, 3]),
        ((1 << 20) - 16, 6, [4, 2]),
        (5 << 20, 2, [1, 1]),
    ],
)
async def test_messages_are_not_larger_than_a_peer_takes_unless_one_event_is(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]], num_bytes: int, copies: int, expected: list[int]
) -> None:
    engine.copies, engine.num_bytes = copies, num_bytes
    peer = Peer()
    events = open_stream(peer, thread)
    peer.send([7])
    parts = [await asyncio.wait_for(anext(events), SECONDS) for _ in expected]
    assert [len(part) for part in parts] == expected
    assert all(len(part) == 1 or ProposeResponse(events=part).ByteSize() <= 4 << 20 for part in parts)
    peer.end()
    with pytest.raises(StopAsyncIteration):
        await receive(events, 1)


async def test_news_are_told_without_answers(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_NEWS_SECONDS", 0.01)
    peer = Peer()
    news = [True, False, True]
    parts = run_stream(peer.messages(), lambda message: message, thread, lambda: bool(news) and news.pop(0))
    for _ in range(2):
        assert await asyncio.wait_for(anext(parts), SECONDS) == []
    assert not news
    peer.send([5])
    assert await receive(parts, 1) == [5]
    peer.end()
    with pytest.raises(StopAsyncIteration):
        await receive(parts, 1)
    await assert_sequences_are_forgotten(engine)


async def test_a_broken_request_stream_is_an_abort(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]]
) -> None:
    # B45: an end by error and an end by close look alike, and both end the sequences.
    peer = Peer()
    events = open_stream(peer, thread)
    peer.send([1])
    await receive(events, 1)
    peer.end(ConnectionError("the peer is gone"))
    with pytest.raises(StopAsyncIteration):
        await receive(events, 1)
    await assert_sequences_are_forgotten(engine)


async def test_cancelling_the_handler_ends_the_sequences(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]]
) -> None:
    peer = Peer()
    received: list[int] = []

    async def handler() -> None:
        async for events in open_stream(peer, thread):
            received.extend(event.round for event in events)

    task = asyncio.create_task(handler())
    peer.send([1])
    await until(lambda: received == [1])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await assert_sequences_are_forgotten(engine)


async def test_an_engine_that_dies_breaks_its_streams(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]]
) -> None:
    peer = Peer()
    events = open_stream(peer, thread)
    peer.send([1])
    await receive(events, 1)
    engine.fails = True
    peer.send([2])
    with pytest.raises(UnavailableError, match="has failed"):
        await receive(events, 2)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    # And so does one that was opened in the same moment.
    with pytest.raises(UnavailableError, match="has failed"):
        await receive(open_stream(peer, thread), 1)


async def test_a_peer_that_does_not_read_is_cut_off(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_UNREAD_EVENTS", 20)
    peer = Peer()
    events = open_stream(peer, thread)
    peer.send([1])
    await receive(events, 1)
    engine.copies = 21
    peer.send([2])
    with pytest.raises(ResourceExhaustedError, match="more than 20 events"):
        await receive(events, 1)
    await assert_sequences_are_forgotten(engine)


async def test_a_slow_engine_stops_the_reading(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_BACKLOG", 10)
    engine.go_on.clear()
    await until(lambda: thread.backlog == 0)
    peer = Peer()
    events = open_stream(peer, thread)
    peer.send([0])
    waiting = asyncio.ensure_future(receive(events, 101))
    await until(lambda: len(engine.arrivals) == 1)  # taken; the engine is in its step now
    peer.send(*([number] for number in range(1, 101)))
    await until(lambda: thread.backlog > 10)
    await asyncio.sleep(0.05)
    assert peer.num_read == 12
    engine.go_on.set()
    assert await asyncio.wait_for(waiting, SECONDS) == list(range(101))
    peer.end()
    with pytest.raises(StopAsyncIteration):
        await receive(events, 1)
    await assert_sequences_are_forgotten(engine)


async def test_the_commands_of_one_message_wait_too(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_BACKLOG", 10)
    monkeypatch.setattr(stream, "_COMMANDS_AT_ONCE", 5)
    engine.go_on.clear()
    peer = Peer()
    events = open_stream(peer, thread)
    peer.send(list(range(100)))
    waiting = asyncio.ensure_future(receive(events, 100))
    await until(lambda: thread.backlog > 10)
    await asyncio.sleep(0.05)
    assert thread.backlog <= 15
    engine.go_on.set()
    assert await asyncio.wait_for(waiting, SECONDS) == list(range(100))
    peer.end()
    with pytest.raises(StopAsyncIteration):
        await receive(events, 1)


async def test_large_messages_wait_by_their_bytes(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_BACKLOG_BYTES", 10_000)
    engine.go_on.clear()
    await until(lambda: thread.backlog == 0)
    num_read = 0

    async def messages() -> AsyncIterator[ProposeResponse]:
        nonlocal num_read
        for _ in range(20):
            num_read += 1
            yield ProposeResponse(events=[DraftEvent(sequence_id=bytes(3_000))])
        await is_over.wait()

    is_over = asyncio.Event()
    events = run_stream(messages(), lambda message: [len(message.events)], thread)
    waiting = asyncio.ensure_future(receive(events, 20))
    await until(lambda: thread.backlog_bytes > 10_000)
    await asyncio.sleep(0.05)
    assert num_read < 20
    engine.go_on.set()
    assert await asyncio.wait_for(waiting, SECONDS) == [1] * 20
    assert thread.backlog_bytes == 0
    is_over.set()
    with pytest.raises(StopAsyncIteration):
        await receive(events, 1)


async def test_the_number_of_streams_is_limited(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # B66: a stream without a sequence costs something too.
    monkeypatch.setattr(stream, "_MAX_STREAMS", 2)
    peers = [Peer(), Peer()]
    streams = [open_stream(peer, thread) for peer in peers]
    for peer, events in zip(peers, streams, strict=True):
        peer.send([1])
        assert await receive(events, 1) == [1]
    with pytest.raises(ResourceExhaustedError, match="2 streams are open, which is the limit"):
        await receive(open_stream(Peer(), thread), 1)
    peers[0].end()
    with pytest.raises(StopAsyncIteration):
        await receive(streams[0], 1)
    last = Peer()
    events = open_stream(last, thread)
    last.send([2])
    assert await receive(events, 1) == [2]
    for peer, ending in ((peers[1], streams[1]), (last, events)):
        peer.end()
        with pytest.raises(StopAsyncIteration):
            await receive(ending, 1)


async def test_bytes_that_are_no_message_end_the_stream_with_the_reason(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]]
) -> None:
    peer = Peer()
    events = open_stream(peer, thread)
    peer.send([1])
    await receive(events, 1)
    peer.end(InvalidArgumentError("the bytes sent are no message of this method"))
    with pytest.raises(InvalidArgumentError, match="no message"):
        await receive(events, 1)
    await assert_sequences_are_forgotten(engine)

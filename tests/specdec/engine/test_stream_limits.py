"""What a stream may leave waiting is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from specdec.engine import stream
from specdec.engine.stream import Arrival, run_stream
from specdec.engine.thread import EngineThread
from specdec.errors import InvalidArgumentError, ResourceExhaustedError
from specdec.v1.draft_pb2 import DraftEvent, ProposeResponse
from tests.specdec.engine.streaming import (
    SECONDS,
    Echo,
    Peer,
    assert_sequences_are_forgotten,
    open_stream,
    receive,
    until,
)


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


async def test_commands_that_ask_for_many_things_count_as_many(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_BACKLOG", 100)
    monkeypatch.setattr(stream, "_COMMANDS_AT_ONCE", 50)
    engine.go_on.clear()
    await until(lambda: thread.backlog == 0)
    peer = Peer()
    events = run_stream(peer.messages(), lambda message: message, thread, weigh=lambda command: command)
    peer.send([1])
    waiting = asyncio.ensure_future(receive(events, 33))
    await until(lambda: len(engine.arrivals) == 1)  # taken; the engine is in its step now
    # Two of 40 are over 50, and two such parts over 100.
    peer.send([40] * 30, [7, 200])
    await until(lambda: thread.backlog > 100)
    await asyncio.sleep(0.05)
    assert thread.backlog == 160
    engine.go_on.set()
    assert await asyncio.wait_for(waiting, SECONDS) == [1, *[40] * 30, 7, 200]
    assert thread.backlog == 0
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

"""A stream feeds the engine, yields its answers, and whatever ends it takes its sequences along."""

from __future__ import annotations

import asyncio
import time

import pytest

from specdec.engine import stream
from specdec.engine.stream import Arrival, run_stream
from specdec.engine.thread import EngineThread
from specdec.errors import ResourceExhaustedError, UnavailableError
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


async def test_the_commands_of_a_message_reach_the_engine_together(
    engine: Echo, thread: EngineThread[Arrival[int, DraftEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One by one, each would wake its thread, which the event loop then waits for.
    monkeypatch.setattr(stream, "_COMMANDS_AT_ONCE", 64)
    submitted: list[int] = []
    submit = thread.submit

    def count(*commands: Arrival[int, DraftEvent], weight: int | None = None, num_bytes: int = 0) -> None:
        submitted.append(len(commands))
        submit(*commands, weight=weight, num_bytes=num_bytes)

    monkeypatch.setattr(thread, "submit", count)
    peer = Peer()
    events = open_stream(peer, thread)
    peer.send(list(range(64)))
    assert await receive(events, 64) == list(range(64))
    peer.send(list(range(100)))
    assert await receive(events, 100) == list(range(100))
    assert submitted == [64, 64, 36]
    peer.end()
    with pytest.raises(StopAsyncIteration):
        await receive(events, 1)


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

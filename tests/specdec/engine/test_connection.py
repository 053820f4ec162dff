from __future__ import annotations

import asyncio
import threading

import pytest

from specdec.engine.connection import Connection


async def soon(connection: Connection[int]) -> list[int]:
    """The next events of a connection that is open, within a bound."""
    events = await asyncio.wait_for(connection.next_events(), 5)
    assert events is not None
    return events


async def test_events_come_in_order_and_everything_that_is_ready_at_once() -> None:
    connection: Connection[int] = Connection(100)
    connection.send([1, 2])
    connection.send([3])
    assert await soon(connection) == [1, 2, 3]
    connection.send([4])
    assert await soon(connection) == [4]


async def test_events_from_another_thread_wake_the_one_who_waits() -> None:
    connection: Connection[int] = Connection(10_000)
    waiting = asyncio.create_task(soon(connection))
    await asyncio.sleep(0)
    threads = [threading.Thread(target=connection.send, args=([number],)) for number in range(50)]
    for thread in threads:
        thread.start()
    received = await waiting
    while len(received) < 50:
        received += await soon(connection)
    for thread in threads:
        thread.join(5)
    assert sorted(received) == list(range(50))


async def test_nothing_ready_means_waiting() -> None:
    connection: Connection[int] = Connection(100)
    connection.send([1])
    await soon(connection)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(connection.next_events(), 0.02)


async def test_it_can_be_woken_without_events() -> None:
    connection: Connection[int] = Connection(100)
    connection.wake()
    assert await soon(connection) == []
    connection.wake()
    connection.send([1])
    assert await soon(connection) == [1]


@pytest.mark.parametrize("how", ["close", "close_soon"])
async def test_closing_wakes_the_one_who_waits_and_ends_delivery(how: str) -> None:
    connection: Connection[int] = Connection(100)
    waiting = asyncio.create_task(asyncio.wait_for(connection.next_events(), 5))
    await asyncio.sleep(0)
    getattr(connection, how)()
    assert await waiting is None
    connection.send([1] * 101)
    await asyncio.sleep(0)
    assert await asyncio.wait_for(connection.next_events(), 5) is None
    assert not connection.is_overrun


async def test_events_left_unread_are_bounded() -> None:
    connection: Connection[int] = Connection(3)
    was_overrun = []
    for events in ([1, 2, 3], [4]):
        connection.send(events)
        await asyncio.sleep(0)
        was_overrun.append(connection.is_overrun)
    assert was_overrun == [False, True]
    assert await asyncio.wait_for(connection.next_events(), 5) is None


def test_sending_when_the_loop_is_gone_is_harmless() -> None:
    async def make() -> Connection[int]:
        return Connection(3)

    connection = asyncio.run(make())
    connection.send([1])
    connection.close_soon()

"""The relay in this process, where its sockets and tasks can be seen. test_relay_process.py is about its times."""

import asyncio
import gc
import hashlib
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from benchmarks.links.conditions import LinkConditions
from benchmarks.links.relay import Relay

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Peer:
    """A server that hands its connections to the test."""

    address: str = ""
    connections: "asyncio.Queue[Streams]" = field(default_factory=asyncio.Queue)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    writers = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await peer.connections.put((reader, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    peer.address = f"{host}:{port}"
    yield peer
    for writer in writers:
        writer.transport.abort()
    server.close()
    await server.wait_closed()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Streams]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read(reader: asyncio.StreamReader, count: int) -> bytes:
    return await asyncio.wait_for(reader.readexactly(count), 20)


async def nothing_comes(reader: asyncio.StreamReader, seconds: float) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(reader.read(1), seconds)


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def test_bytes_pass_both_ways_and_take_their_time(peer: Peer) -> None:
    async with (
        Relay(peer.address, LinkConditions(rtt_seconds=0.2)) as relay,
        connected(relay.address) as (reader, writer),
    ):
        began = time.monotonic()
        writer.write(b"there")
        peer_reader, peer_writer = await peer.connections.get()
        assert await read(peer_reader, 5) == b"there"
        one_way = time.monotonic() - began
        peer_writer.write(b"back")
        assert await read(reader, 4) == b"back"
        both_ways = time.monotonic() - began
        assert 0.1 <= one_way < both_ways
        assert 0.2 <= both_ways < 1.0
        assert relay.counts.num_delivered_bytes == 9


@pytest.mark.parametrize("conditions", [
    LinkConditions(),
    LinkConditions(rtt_seconds=0.01, jitter_seconds=0.005, seed=3),
    LinkConditions(rtt_seconds=0.01, bytes_per_second=20e6),
])  # fmt: skip
async def test_megabytes_arrive_as_they_were_sent_though_the_receiver_is_slow(
    peer: Peer, conditions: LinkConditions
) -> None:
    pieces = [bytes([index % 251]) * (1 + 977 * index % 40_000) for index in range(1000)]
    sent = hashlib.sha256(b"".join(pieces)).hexdigest()

    async def send(writer: asyncio.StreamWriter) -> None:
        for index, piece in enumerate(pieces):
            writer.write(piece)
            if index % 7 == 0:
                await asyncio.sleep(0)
            await writer.drain()
        writer.write_eof()

    received = hashlib.sha256()
    async with Relay(peer.address, conditions) as relay, connected(relay.address) as (_, writer):
        sending = asyncio.create_task(send(writer))
        peer_reader, _ = await peer.connections.get()
        await asyncio.sleep(0.05)
        while data := await asyncio.wait_for(peer_reader.read(1 << 16), 20):
            received.update(data)
        await sending
    assert received.hexdigest() == sent


async def test_a_receiver_that_does_not_read_holds_up_the_sender(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.links.relay._MAX_HELD_BYTES", 1 << 20)
    async with Relay(peer.address) as relay, connected(relay.address) as (_, writer):
        num_sent, is_held_up = 0, False
        while not is_held_up and num_sent < 200 << 20:
            writer.write(bytes(1 << 20))
            num_sent += 1 << 20
            try:
                await asyncio.wait_for(writer.drain(), 0.5)
            except asyncio.TimeoutError:
                is_held_up = True
        # What the kernel's buffers and the relay hold, and no more.
        assert num_sent < 100 << 20
        peer_reader, _ = await peer.connections.get()
        await read(peer_reader, num_sent)


async def test_an_end_passes_as_bytes_do_and_leaves_the_other_direction_open(peer: Peer) -> None:
    async with Relay(peer.address, LinkConditions(rtt_seconds=0.04)) as relay:
        async with connected(relay.address) as (reader, writer):
            writer.write(b"question")
            writer.write_eof()
            peer_reader, peer_writer = await peer.connections.get()
            assert await asyncio.wait_for(peer_reader.read(), 20) == b"question"
            await nothing_comes(reader, 0.1)
            peer_writer.write(b"answer")
            peer_writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 20) == b"answer"
            for _ in range(100):
                if relay.counts.num_open == 0:
                    break
                await asyncio.sleep(0.01)
            # Both directions have ended in order, so the relay keeps nothing of it.
            assert relay.counts.num_open == 0
        assert relay.counts.num_delivered_bytes == len("questionanswer")


async def test_a_reset_passes(peer: Peer) -> None:
    async with Relay(peer.address) as relay, connected(relay.address) as (reader, writer):
        writer.write(b"x")
        peer_reader, peer_writer = await peer.connections.get()
        await read(peer_reader, 1)
        peer_writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer_writer.transport.abort()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 20)


async def test_cut_resets_both_sides_and_loses_what_is_under_way(peer: Peer) -> None:
    async with (
        Relay(peer.address, LinkConditions(rtt_seconds=0.4)) as relay,
        connected(relay.address) as (reader, writer),
    ):
        writer.write(b"lost")
        peer_reader, _ = await peer.connections.get()
        relay.cut()
        for end in (reader, peer_reader):
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(end.read(), 20)
        assert relay.counts.num_cut == 1
        # New connections are taken.
        async with connected(relay.address) as (_, second):
            second.write(b"again")
            second_peer_reader, _ = await peer.connections.get()
            assert await read(second_peer_reader, 5) == b"again"


async def test_refusing_leaves_open_connections_alone_and_keeps_the_port(peer: Peer) -> None:
    async with Relay(peer.address) as relay, connected(relay.address) as (_, writer):
        writer.write(b"1")
        peer_reader, _ = await peer.connections.get()
        await read(peer_reader, 1)
        address = relay.address
        for _ in range(3):
            relay.refuse()
            with pytest.raises(ConnectionRefusedError):
                async with connected(address):
                    pass
            assert relay.address == address
            await relay.accept()
            async with connected(address) as (_, second):
                second.write(b"2")
                second_peer_reader, _ = await peer.connections.get()
                assert await read(second_peer_reader, 1) == b"2"
        writer.write(b"3")
        assert await read(peer_reader, 1) == b"3"


async def test_frozen_nothing_passes_not_even_an_end_and_thawed_everything_does_in_order(peer: Peer) -> None:
    async with Relay(peer.address) as relay, connected(relay.address) as (reader, writer):
        writer.write(b"1")
        peer_reader, peer_writer = await peer.connections.get()
        await read(peer_reader, 1)
        relay.freeze()
        writer.write(b"2")
        await asyncio.sleep(0.02)
        writer.write(b"3")
        writer.write_eof()
        peer_writer.write(b"back")
        await nothing_comes(peer_reader, 0.2)
        await nothing_comes(reader, 0.05)
        relay.thaw()
        assert await asyncio.wait_for(peer_reader.read(), 20) == b"23"
        assert await read(reader, 4) == b"back"


async def test_a_connection_made_while_frozen_waits(peer: Peer) -> None:
    async with Relay(peer.address) as relay:
        relay.freeze()
        async with connected(relay.address) as (_, writer):
            writer.write(b"hello")
            await asyncio.sleep(0.1)
            assert peer.connections.empty()
            relay.thaw()
            peer_reader, _ = await asyncio.wait_for(peer.connections.get(), 20)
            assert await read(peer_reader, 5) == b"hello"


async def test_nobody_behind_the_relay_is_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with Relay(address) as relay, connected(relay.address) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 20)
        await asyncio.sleep(0.01)
        assert relay.counts.num_open == 0


async def test_both_sockets_send_at_once(peer: Peer) -> None:
    async with Relay(peer.address) as relay, connected(relay.address) as (_, writer):
        writer.write(b"x")
        await peer.connections.get()
        (connection,) = relay._connections
        for side in (connection.client, connection._server):
            assert side.transport is not None
            own = side.transport.get_extra_info("socket")
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_leaving_closes_every_socket_and_ends_every_task(peer: Peer) -> None:
    async def use() -> None:
        async with Relay(peer.address, LinkConditions(rtt_seconds=0.2)) as relay:
            for way in range(4):
                async with connected(relay.address) as (_, writer):
                    writer.write(bytes(100_000))
                    if way % 2:
                        await peer.connections.get()
            relay.freeze()
            async with connected(relay.address) as (_, writer):
                writer.write(b"never")
                await asyncio.sleep(0.02)

    async def drop_peers() -> None:
        while not peer.connections.empty():
            (await peer.connections.get())[1].transport.abort()
        await asyncio.sleep(0.05)

    await use()
    await drop_peers()
    before, tasks = open_descriptors(), asyncio.all_tasks()
    await use()
    await drop_peers()
    assert open_descriptors() == before
    assert asyncio.all_tasks() == tasks


async def test_an_address_that_is_none() -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Relay("nowhere")


async def test_an_address_in_use(peer: Peer) -> None:
    with pytest.raises(OSError, match="in use"):
        async with Relay(peer.address, listen=peer.address):
            pass

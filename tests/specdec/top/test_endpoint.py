import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from specdec.telemetry import names
from specdec.top import endpoint as endpoint_module
from specdec.top.endpoint import Endpoint, EndpointError
from tests.specdec.top.serving import Emitting, served


@asynccontextmanager
async def answering(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[Endpoint]:
    """A server of one connection, to which it says what it likes; ends when the other side has gone."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                await answer(writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        await asyncio.wait_for(ended.wait(), 10)


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [("a:1", Endpoint("a", 1)), ("127.0.0.1:9100", Endpoint("127.0.0.1", 9100)), ("[::1]:5", Endpoint("::1", 5))],
)
def test_addresses(address: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(address) == endpoint
    assert str(endpoint) == address


@pytest.mark.parametrize(
    "address", ["", "a", ":5", "a:", "a:b", "a:0", "a:70000", "::1:5", "http://a:5", "a:-1", "a:٣"]
)
def test_other_addresses(address: str) -> None:
    with pytest.raises(ValueError, match=r"port|PORT"):
        Endpoint.parse(address)


async def test_what_is_served_is_read() -> None:
    emitting = Emitting("specdec-target")
    emitting.target.open_sequences(5)
    with served(emitting) as address:
        scrape = await Endpoint.parse(address).scrape(5)
    assert scrape.total(names.OPEN_SEQUENCES) == 5


async def test_nobody_listens() -> None:
    with pytest.raises(EndpointError, match="connection refused"):
        await Endpoint("127.0.0.1", 1).scrape(5)


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [(b"", 404, "status 404"), (b"<html>", 200, "serves no metrics"), (b"\xff\xfe", 200, "serves no metrics")],
)
async def test_something_else_answers(body: bytes, status: int, complaint: str) -> None:
    with served(body, status=status) as address, pytest.raises(EndpointError, match=complaint):
        await Endpoint.parse(address).scrape(5)


async def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_MAX_BYTES", 1000)
    with served(5000 * b"x") as address, pytest.raises(EndpointError, match="too large"):
        await Endpoint.parse(address).scrape(5)


async def test_silence_is_bounded() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(EndpointError, match=r"no answer within 0\.2 s"),
    ):
        await Endpoint("127.0.0.1", silent.getsockname()[1]).scrape(0.2)


async def test_an_answer_that_drips_is_bounded() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"#")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with answering(drip) as endpoint:
        began = time.monotonic()
        with pytest.raises(EndpointError, match="no answer within"):
            await endpoint.scrape(0.3)
        assert time.monotonic() - began < 5


async def test_it_does_not_speak_http() -> None:
    async def shout(writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        await writer.drain()

    async with answering(shout) as endpoint:
        with pytest.raises(EndpointError, match="does not speak HTTP"):
            await endpoint.scrape(5)

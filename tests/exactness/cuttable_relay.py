"""A TCP relay whose connections can be cut, as a network or a crashed peer cuts them."""

from __future__ import annotations

import asyncio
from types import TracebackType

from typing_extensions import Self


class CuttableRelay:
    """Listens on a port of its own and passes everything on; an asynchronous context manager.

    Args:
        address: host:port to pass on to; may be changed, for connections to come.
    """

    def __init__(self, address: str) -> None:
        self.peer = address
        self.num_cut = 0
        """Connections cut so far."""
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}

    @property
    def address(self) -> str:
        """host:port to connect to."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Reset every connection, in both directions."""
        for writers in self._connections.values():
            for writer in writers:
                writer.transport.abort()
            self.num_cut += 1

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        host, port = self.peer.split(":")
        try:
            peer_reader, peer_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._connections[task] = (writer, peer_writer)
        try:
            await asyncio.gather(_pass_on(reader, peer_writer), _pass_on(peer_reader, writer))
        finally:
            del self._connections[task]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until either side ends; then end the other."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()

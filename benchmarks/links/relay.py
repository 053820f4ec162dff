"""A TCP relay that understands nothing of what it relays: delay, jitter, bandwidth, cuts, refusals, freezes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from selectors import SelectSelector
from types import TracebackType

from typing_extensions import Self

from benchmarks.links.conditions import LinkConditions
from benchmarks.links.connection import RelayedConnection

_MAX_HELD_BYTES = 16 << 20
"""Under way in each direction of a connection: 40 ms of 400 MB/s."""
_BACKLOG = 128


@dataclass(frozen=True)
class RelayCounts:
    """What a relay has done so far."""

    num_connections: int = 0
    num_open: int = 0
    num_cut: int = 0
    num_delivered_bytes: int = 0
    """Of connections that are over and of those that are open."""

    def to_json(self) -> dict[str, int]:
        """As JSON values."""
        return asdict(self)


class Relay:
    """Listens on a port and passes everything on; an asynchronous context manager.

    Run it in a process of its own (`RelayProcess`) when time matters: on the event loop of what it delays, each would
    wait for the other.

    Connecting takes no time: only bytes, ends and resets are delayed.

    Args:
        peer: HOST:PORT to pass on to. Nobody has to listen there yet; a connection that cannot be passed on is reset.
        conditions: of the link.
        listen: HOST:PORT; port 0 is chosen by the system.
    """

    def __init__(self, peer: str, conditions: LinkConditions | None = None, *, listen: str = "127.0.0.1:0") -> None:
        self._peer = _host_and_port(peer)
        self._conditions = conditions or LinkConditions()
        self._listen = _host_and_port(listen)
        self._reservation: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[RelayedConnection] = set()
        self._numbers = itertools.count()
        self._num_connections = 0
        self._num_cut = 0
        self._num_bytes_of_ended = 0
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    @property
    def address(self) -> str:
        """HOST:PORT to connect to; the same also while connections are refused.

        Raises:
            RuntimeError: not entered.
        """
        if self._reservation is None:
            raise RuntimeError("the relay does not listen yet")
        host, port = self._reservation.getsockname()
        return f"{host}:{port}"

    @property
    def counts(self) -> RelayCounts:
        """What was done so far."""
        under_way = sum(lane.num_delivered_bytes for connection in self._connections for lane in connection.lanes)
        return RelayCounts(
            self._num_connections, len(self._connections), self._num_cut, self._num_bytes_of_ended + under_way
        )

    def change(self, conditions: LinkConditions) -> None:
        """Other conditions for all that arrives from now on."""
        self._conditions = conditions
        for connection in self._connections:
            connection.change(conditions)

    def cut(self) -> None:
        """Reset every connection in both directions. What is under way is lost."""
        for connection in tuple(self._connections):
            self._num_cut += 1
            connection.cut()

    def refuse(self) -> None:
        """Refuse connections to come; those that are open go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def accept(self) -> None:
        """Take connections again, at the same port."""
        if self._server is None:
            listening = _bound_socket(self.address)
            self._server = await asyncio.get_running_loop().create_server(
                lambda: self._new_connection().client, sock=listening, backlog=_BACKLOG
            )

    def freeze(self) -> None:
        """Deliver nothing any more, and close nothing: a network that has gone quiet. Connections are still taken."""
        self._thawed.clear()
        for connection in self._connections:
            connection.freeze(True)

    def thaw(self) -> None:
        """Deliver all that is due by now, in order, and go on."""
        self._thawed.set()
        for connection in tuple(self._connections):
            connection.freeze(False)

    async def __aenter__(self) -> Self:
        self._reservation = _bound_socket(f"{self._listen[0]}:{self._listen[1]}")
        try:
            await self.accept()
        except BaseException:
            self._reservation.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        self.cut()
        await self._all_ended.wait()
        if self._reservation is not None:
            self._reservation.close()

    def _new_connection(self) -> RelayedConnection:
        connection = RelayedConnection(
            next(self._numbers),
            self._conditions,
            _MAX_HELD_BYTES,
            self._connect,
            self._ended,
        )
        connection.freeze(not self._thawed.is_set())
        self._connections.add(connection)
        self._num_connections += 1
        self._all_ended.clear()
        return connection

    async def _connect(self, protocol: asyncio.Protocol) -> None:
        await self._thawed.wait()
        await asyncio.get_running_loop().create_connection(lambda: protocol, *self._peer)

    def _ended(self, connection: RelayedConnection) -> None:
        self._connections.discard(connection)
        self._num_bytes_of_ended += sum(lane.num_delivered_bytes for lane in connection.lanes)
        if not self._connections:
            self._all_ended.set()


def precise_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers are good to less than 0.1 ms on an idle machine.

    The default one waits in whole milliseconds (epoll), which is longer than the shortest delays here.
    Only for file descriptors below 1024.
    """
    # The kernel lets a sleeping thread sleep 50 us longer unless it is told otherwise.
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")
    return asyncio.SelectorEventLoop(SelectSelector())


def _bound_socket(address: str) -> socket.socket:
    """Bound and not listening. As long as one stays, the port belongs to nobody else, and others can be bound to it."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(_host_and_port(address))
    except BaseException:
        bound.close()
        raise
    return bound


def _host_and_port(address: str) -> tuple[str, int]:
    """
    Raises:
        ValueError: not HOST:PORT.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal():
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host, int(port)

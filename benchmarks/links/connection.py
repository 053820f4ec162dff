"""One connection through the relay: a socket on either side, a lane each way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from benchmarks.links.conditions import DeliverySchedule, LinkConditions
from benchmarks.links.lane import End, Lane, reset

Connect = Callable[[asyncio.Protocol], Awaitable[object]]


class RelayedConnection:
    """Ends when both directions have ended in order, or either side was reset.

    Args:
        number: counts connections; with the seed it decides the jitter.
        conditions: of the link.
        max_held_bytes: under way in each direction, before the sender is held up.
        connect: opens the other side for the protocol it is given.
        on_end: called once when both sockets are closed.
    """

    def __init__(
        self,
        number: int,
        conditions: LinkConditions,
        max_held_bytes: int,
        connect: Connect,
        on_end: Callable[[RelayedConnection], None],
    ) -> None:
        in_pieces = conditions.bytes_per_second is not None
        there, back = (
            Lane(
                DeliverySchedule(conditions, f"{number} {way}"),
                max_held_bytes,
                in_pieces=in_pieces,
                on_end=self.check_end,
            )
            for way in ("there", "back")
        )
        self.lanes = (there, back)
        self.client = _Side(self, outgoing=there, incoming=back)
        self._server = _Side(self, outgoing=back, incoming=there)
        self._connect = connect
        self._connecting: asyncio.Task[None] | None = None
        self._on_end = on_end
        self._is_over = False

    def client_connected(self) -> None:
        """Open the other side."""
        self._connecting = asyncio.get_running_loop().create_task(self._open())

    def cut(self) -> None:
        """Reset both sides; what is under way is lost."""
        for lane in self.lanes:
            lane.drop()
        if self._connecting is not None:
            self._connecting.cancel()
        for side in (self.client, self._server):
            if side.transport is not None:
                reset(side.transport)
        self.check_end()

    def freeze(self, is_frozen: bool) -> None:
        """Hold everything in both directions, or let go."""
        for lane in self.lanes:
            lane.freeze(is_frozen)

    def change(self, conditions: LinkConditions) -> None:
        """For bytes that arrive from now on."""
        for lane in self.lanes:
            lane.schedule.change(conditions)
            lane.in_pieces = conditions.bytes_per_second is not None

    def check_end(self) -> None:
        """Close what is over."""
        sides = (self.client, self._server)
        if all(lane.has_ended for lane in self.lanes):
            for side in sides:
                if side.transport is not None:
                    side.transport.close()
        is_connecting = self._connecting is not None and not self._connecting.done()
        if not self._is_over and not is_connecting and all(side.is_closed for side in sides):
            self._is_over = True
            self._on_end(self)

    async def _open(self) -> None:
        try:
            await self._connect(self._server)
        except OSError:
            for lane in self.lanes:
                lane.drop()
            if self.client.transport is not None:
                reset(self.client.transport)
        finally:
            asyncio.get_running_loop().call_soon(self.check_end)


class _Side(asyncio.Protocol):
    """The socket of one side."""

    def __init__(self, connection: RelayedConnection, *, outgoing: Lane, incoming: Lane) -> None:
        self.transport: asyncio.Transport | None = None
        self._connection = connection
        self._outgoing = outgoing
        """Takes what this side sends."""
        self._incoming = incoming
        """Brings what this side is sent."""
        self._is_lost = False

    @property
    def is_closed(self) -> bool:
        """Whether there is no socket any more, or there never was one."""
        return self.transport is None or self._is_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - TCP has no other
        # asyncio does it only for some sockets.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = transport
        self._outgoing.source = transport
        if self is self._connection.client:
            self._connection.client_connected()
        elif self._incoming.has_ended and self._outgoing.has_ended:
            reset(transport)
            return
        self._incoming.connect(transport)

    def data_received(self, data: bytes) -> None:
        self._outgoing.put(data)

    def eof_received(self) -> bool:
        self._outgoing.put(End.EOF)
        return True  # The other direction goes on.

    def pause_writing(self) -> None:
        self._incoming.hold(True)

    def resume_writing(self) -> None:
        self._incoming.hold(False)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._outgoing.source = None
        self._incoming.drop()
        if error is not None and not self._outgoing.has_ended:
            self._outgoing.put(End.RESET)
        self._connection.check_end()

"""One direction of a relayed connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from enum import Enum

from benchmarks.links.conditions import DeliverySchedule

_PIECE_BYTES = 16 << 10
"""Under a limit of bandwidth, chunks are delivered in pieces of this size, not in lumps."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class End(Enum):
    """How a sender ended its direction. It travels as the bytes do."""

    EOF = "eof"
    RESET = "reset"


class Lane:
    """Chunks wait here until they are due. Nothing is delivered out of order, and nothing while the lane is frozen.

    Args:
        schedule: says when chunks are due.
        max_held_bytes: with more than this under way, no more is read from the sender.
        in_pieces: whether chunks are divided, because they take time to send.
        on_end: called when the sender's end has been delivered.
    """

    def __init__(
        self, schedule: DeliverySchedule, max_held_bytes: int, *, in_pieces: bool, on_end: Callable[[], None]
    ) -> None:
        self.schedule = schedule
        self.in_pieces = in_pieces
        self.source: asyncio.Transport | None = None
        self.num_delivered_bytes = 0
        self.has_ended = False
        """Whether an end was delivered, or the lane was dropped."""
        self._loop = asyncio.get_running_loop()
        self._max_held_bytes = max_held_bytes
        self._on_end = on_end
        self._waiting: deque[tuple[float, bytes | End]] = deque()
        self._num_held_bytes = 0
        self._sink: asyncio.Transport | None = None
        self._sink_is_full = False
        self._is_frozen = False
        self._timer: asyncio.TimerHandle | None = None

    def put(self, item: bytes | End) -> None:
        """The sender sent this, now."""
        now = self._loop.time()
        if isinstance(item, End):
            self._waiting.append((self.schedule.due(now, 0), item))
        else:
            self._num_held_bytes += len(item)
            size = _PIECE_BYTES if self.in_pieces else len(item)
            for start in range(0, len(item), size):
                piece = item[start : start + size]
                self._waiting.append((self.schedule.due(now, len(piece)), piece))
            if self._num_held_bytes > self._max_held_bytes and self.source is not None:
                self.source.pause_reading()
        if self._timer is None:
            self._deliver()

    def connect(self, sink: asyncio.Transport) -> None:
        """This is where the bytes go."""
        self._sink = sink
        self._deliver()

    def freeze(self, is_frozen: bool) -> None:
        """Hold everything, or let go of what is due by now."""
        self._is_frozen = is_frozen
        self._deliver()

    def hold(self, is_full: bool) -> None:
        """The receiver does not read fast enough, or does again."""
        self._sink_is_full = is_full
        self._deliver()

    def drop(self) -> None:
        """Lose what is under way; deliver nothing more."""
        self.has_ended = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sink = self._sink
        if sink is None or self._is_frozen or self.has_ended:
            return
        while self._waiting and not self._sink_is_full:
            due, item = self._waiting[0]
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self._deliver)
                break
            self._waiting.popleft()
            if isinstance(item, End):
                self.drop()
                if item is End.RESET:
                    reset(sink)
                elif not sink.is_closing():
                    # The receiver may have reset the connection a moment ago, which asyncio does not know yet.
                    with contextlib.suppress(OSError):
                        sink.write_eof()
                self._on_end()
                return
            self._num_held_bytes -= len(item)
            self.num_delivered_bytes += len(item)
            if not sink.is_closing():
                sink.write(item)
        if self._num_held_bytes <= self._max_held_bytes // 2 and self.source is not None:
            self.source.resume_reading()


def reset(transport: asyncio.Transport) -> None:
    """Close a connection so that its peer sees a reset, as after a crash, and not an orderly end."""
    transport_socket = transport.get_extra_info("socket")
    if transport_socket is not None and not transport.is_closing():
        transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()

"""Measures round trips through whatever lies between: a few bytes there, the same back."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType

from typing_extensions import Self

_NUM_BYTES = 64
_TIMEOUT_SECONDS = 30.0


class EchoServer:
    """Sends back what it gets, on a thread of its own for each connection; a context manager."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []

    @property
    def address(self) -> str:
        """HOST:PORT."""
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        self._accepting = threading.Thread(target=self._accept, name="echo server", daemon=True)
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing alone would not wake up the thread.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in (self._accepting, *self._threads):
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=_echo, args=(connection,), name="echo", daemon=True)
            self._threads.append(thread)
            thread.start()


class EchoProbe:
    """One connection to an echo server; a context manager."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def rtt_seconds(self) -> float:
        """One round trip.

        Raises:
            OSError: the connection broke, or nothing came back.
        """
        payload = bytes(_NUM_BYTES)
        began = time.perf_counter()
        self._socket.sendall(payload)
        num_missing = _NUM_BYTES
        while num_missing:
            received = self._socket.recv(num_missing)
            if not received:
                raise ConnectionError("the connection ended")
            num_missing -= len(received)
        return time.perf_counter() - began


def _echo(connection: socket.socket) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while data := connection.recv(1 << 16):
                connection.sendall(data)
        except OSError:
            return

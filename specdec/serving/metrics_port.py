"""A port for Prometheus, which fetches metrics when it likes."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from specdec.serving.binding import BindError, joined


class MetricsPort:
    """Serves what this process counts at /metrics, in plaintext, from a thread of its own.

    No prompt, token or secret is among it (specdec/telemetry/names.py); who may read it is for the network to say.
    """

    def __init__(self) -> None:
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None
        self.address = ""
        """host:port, once it listens."""

    def listen(self, host: str, port: int) -> None:
        """Bind and serve; port 0 takes a free one.

        Raises:
            BindError: the address cannot be listened on.
        """
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(port, addr=host)
        except OSError as error:
            reason = (error.strerror or "it cannot be bound").lower()
            raise BindError(
                f"cannot serve metrics on {joined(host, port)}: {reason}; choose another --metrics-port"
            ) from None
        self.address = joined(host, self._server.server_port)

    def close(self) -> None:
        """Stop serving; harmless if it never did. Blocks for a moment."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = None

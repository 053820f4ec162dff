"""A port for probes, which have no certificate."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2_grpc

from specdec.serving.binding import bind
from specdec.serving.channel import server_options
from specdec.serving.health import Health
from specdec.serving.refusals import RefusalInterceptor

_MAX_MESSAGE_BYTES = 1024


class HealthPort:
    """Answers health checks in plaintext, and nothing else.

    Args:
        health: what is answered.
    """

    def __init__(self, health: Health) -> None:
        self.port = 0
        """The port, once it listens."""
        self._server = grpc.aio.server(interceptors=[RefusalInterceptor()], options=server_options(_MAX_MESSAGE_BYTES))
        health_pb2_grpc.add_HealthServicer_to_server(health, self._server)

    async def listen(self, host: str, port: int) -> None:
        """Bind and answer.

        Raises:
            BindError: the address cannot be listened on.
        """
        self.port = await bind(self._server, host, port)
        await self._server.start()

    async def close(self) -> None:
        """Stop, and cut who still watches."""
        await self._server.stop(None)

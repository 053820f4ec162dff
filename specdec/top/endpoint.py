"""Where a process serves its metrics."""

from __future__ import annotations

import asyncio
import http.client
import time
from dataclasses import dataclass

from specdec.top.scrape import MalformedMetricsError, Scrape

_MAX_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024


class EndpointError(Exception):
    """Nothing could be read there; the message says why, and not where."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and the port of `--metrics-port`."""

    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> Endpoint:
        """HOST:PORT; an IPv6 address in brackets.

        Raises:
            ValueError: it is something else.
        """
        host, separator, port = address.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not separator or not bare or ("/" in host) or (":" in bare and bare == host):
            raise ValueError(f"{address!r} is not HOST:PORT")
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{address!r} has no port from 1 to 65535")
        return cls(bare, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def scrape(self, timeout_seconds: float) -> Scrape:
        """What it serves now. The wait for a name to be resolved is the system's.

        Raises:
            EndpointError: it does not answer in time, or with something else.
        """
        return await asyncio.to_thread(self._scrape, timeout_seconds)

    def _scrape(self, timeout_seconds: float) -> Scrape:
        deadline = time.monotonic() + timeout_seconds
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_seconds)
        try:
            connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise EndpointError(f"it answers with status {response.status}")
            body = bytearray()
            # Piece by piece, for a timeout of the socket starts anew with every byte.
            while chunk := response.read1(_CHUNK_BYTES):
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise EndpointError("its answer is too large")
                if time.monotonic() > deadline:
                    raise TimeoutError
            return Scrape.parse(body.decode(), time.monotonic())
        except TimeoutError:
            raise EndpointError(f"no answer within {timeout_seconds:g} s") from None
        except http.client.HTTPException:
            raise EndpointError("it does not speak HTTP") from None
        except (UnicodeDecodeError, MalformedMetricsError):
            raise EndpointError("it serves no metrics") from None
        except OSError as error:
            raise EndpointError((error.strerror or "it cannot be reached").lower()) from None
        finally:
            connection.close()

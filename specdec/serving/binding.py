"""Binding a server to its address, with an error that says what is wrong."""

import asyncio
import ipaddress
import socket

import grpc


class BindError(Exception):
    """The address cannot be listened on; the message is one sentence for the operator."""


async def bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Bind and return the port; `port` 0 takes a free one.

    Raises:
        BindError: the port is in use, or the host is no address of this machine.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # gRPC keeps the reason for itself, so a plain socket is bound first to learn it.
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
        return server.add_insecure_port(joined(host, port))
    except (OSError, RuntimeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it cannot be bound"
        raise BindError(
            f"cannot listen on {joined(host, port)}: {reason.lower()}; choose another host or port"
        ) from None


def joined(host: str, port: int) -> str:
    """host:port, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

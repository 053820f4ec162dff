"""Binding a server to its address, with an error that says what is wrong."""

import asyncio
import ipaddress
import socket

import grpc


class BindError(Exception):
    """The address cannot be listened on; the message is one sentence for the operator."""


async def bind(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
    """Bind and return the port.

    Args:
        server: not yet started.
        host: address to listen on.
        port: 0 takes a free one.
        credentials: certificates to show; None: plaintext.

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
        if credentials is not None:
            return server.add_secure_port(joined(host, port), credentials)
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


def is_loopback_target(address: str) -> bool:
    """Whether a gRPC target, such as host:port or dns:///host:port, can only be this machine."""
    scheme, colon, rest = address.partition(":")
    if colon and scheme in ("unix", "unix-abstract"):
        return True
    if colon and scheme in ("ipv4", "ipv6", "dns"):
        address = rest
    hosts = [entry.rpartition("/")[2] for entry in address.split(",")]
    return all(is_loopback(_host(entry)) for entry in hosts)


def _host(entry: str) -> str:
    """The host in host, host:port, [host] or [host]:port."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry if entry.count(":") > 1 else entry.partition(":")[0]

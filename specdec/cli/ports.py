"""TCP ports for services that this process is about to start."""

import contextlib
import socket
from collections.abc import Sequence


def choose_ports(wanted: Sequence[tuple[str, int]]) -> list[int]:
    """Ports to give to services, from (host, port) pairs: a free one in place of each 0; all distinct.

    Raises:
        OSError: a wanted port is in use or wanted twice, or a host is not an address of this machine.
    """
    chosen: dict[int, int] = {}
    # Fixed ports first, and all held until the last is chosen: so no free one equals another.
    with contextlib.ExitStack() as held:
        for index in sorted(range(len(wanted)), key=lambda index: wanted[index][1] == 0):
            host, port = wanted[index]
            if port in chosen.values():
                raise OSError(f"port {port} is wanted twice")
            chosen[index] = _bind(held, host, port)
    return [chosen[index] for index in range(len(wanted))]


def _bind(held: contextlib.ExitStack, host: str, port: int) -> int:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    probe = held.enter_context(socket.socket(family, kind, protocol))
    if port:
        # Connections left over from a server that ended a moment ago do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(address)
    except OSError as error:
        raise OSError(f"port {port} of {host} cannot be had: {error.strerror}") from error
    return int(probe.getsockname()[1])

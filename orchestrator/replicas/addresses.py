"""Where the replicas of a service are: a list of addresses, some of which are names that stand for many."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass

from specdec.serving.binding import joined

_log = logging.getLogger(__name__)

_NAME_PREFIXES = ("dns:///", "dns:")
RESOLVE_SECONDS = 5.0
"""Longest wait for a name."""


class AddressError(ValueError):
    """The setting is malformed; the message says how."""


@dataclass(frozen=True, slots=True)
class Name:
    """A host name with a port, such as that of a headless service, which has an address for each replica."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a setting lists, in its order."""

    entries: tuple[str | Name, ...]

    @classmethod
    def parse(cls, text: str) -> Addresses:
        """Read addresses with commas between them.

        Args:
            text: `host:port` is one replica; `dns:///host:port` one for each address that the name has, looked up again
                and again.

        Raises:
            AddressError: a name without a port.
        """
        entries = (entry.strip() for entry in text.split(","))
        return cls(tuple(dict.fromkeys(_parse_entry(entry) for entry in entries if entry)))

    @property
    def has_names(self) -> bool:
        """Whether looking again may find others."""
        return any(isinstance(entry, Name) for entry in self.entries)

    def __bool__(self) -> bool:
        return bool(self.entries)


class Resolver:
    """Looks addresses up, and keeps what a name last had while it cannot be looked up.

    Args:
        addresses: to look up.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._known: dict[Name, list[str]] = {}
        self._problems: dict[Name, str] = {}

    async def resolve(self) -> list[str]:
        """The address of each replica, in order, each once."""
        found: dict[str, None] = {}
        for entry in self._addresses.entries:
            for address in [entry] if isinstance(entry, str) else await self._look_up(entry):
                found[address] = None
        return list(found)

    async def _look_up(self, name: Name) -> list[str]:
        loop = asyncio.get_running_loop()
        problem = ""
        try:
            looking = loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
            answers = await asyncio.wait_for(looking, RESOLVE_SECONDS)
            # Sorted, since a name server answers in another order each time.
            self._known[name] = sorted({joined(str(answer[4][0]), name.port) for answer in answers})
        except asyncio.TimeoutError:
            problem = f"no answer within {RESOLVE_SECONDS:g} s"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem != self._problems.get(name, ""):
            if problem:
                _log.warning("%s cannot be looked up: %s", name.host, problem)
            self._problems[name] = problem
        return self._known.get(name, [])


def _parse_entry(entry: str) -> str | Name:
    prefix = next((prefix for prefix in _NAME_PREFIXES if entry.startswith(prefix)), None)
    if prefix is None:
        return entry
    host, _, port = entry.removeprefix(prefix).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise AddressError(f"{entry!r} is no name with a port, such as dns:///targets.example:50052")
    return Name(host.strip("[]"), int(port))

"""Puts relays between services, by changing addresses in their commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specdec.cli.service_group import ServiceSpec


def redirected(spec: ServiceSpec, addresses: Mapping[str, str]) -> ServiceSpec:
    """A service that calls others at other addresses; where it listens itself stays the same.

    Args:
        spec: of the service, usually the orchestrator.
        addresses: the address of a relay for each HOST:PORT that it is put in front of.

    Raises:
        ValueError: the command names one of the addresses nowhere, so that nothing would be relayed.
    """
    command = list(spec.command)
    unused = set(addresses)
    for index, argument in enumerate(command):
        flag, separator, value = argument.partition("=")
        if separator and flag.startswith("--") and value in addresses:
            command[index] = f"{flag}={addresses[value]}"
            unused.discard(value)
    if unused:
        raise ValueError(f"{spec.name} does not call {', '.join(sorted(unused))}")
    return replace(spec, command=tuple(command))

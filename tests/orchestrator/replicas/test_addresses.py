"""Where replicas are: lists, and names that are looked up again and again."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from orchestrator.replicas import addresses
from orchestrator.replicas.addresses import AddressError, Addresses, Name, Resolver


def test_a_list_keeps_its_order_and_each_address_once() -> None:
    parsed = Addresses.parse(" b:2, a:1,,b:2 ,dns:///targets.example:50052,dns:[::1]:7")
    assert parsed.entries == ("b:2", "a:1", Name("targets.example", 50052), Name("::1", 7))
    assert parsed.has_names
    assert not Addresses.parse("a:1").has_names
    assert not Addresses.parse(" , ")


@pytest.mark.parametrize("entry", ["dns:///a", "dns:///a:", "dns:///:50052", "dns:a:x", "dns:a:70000"])
def test_a_name_needs_a_port(entry: str) -> None:
    with pytest.raises(AddressError, match="no name with a port"):
        Addresses.parse(f"a:1,{entry}")


class Names:
    """A name server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[str] | OSError | float] = {}
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._answer)

    async def _answer(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        answer = self.answers[host]
        if isinstance(answer, OSError):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            return []
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]


async def test_a_name_stands_for_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch)
    names.answers = {"targets": ["10.0.0.2", "10.0.0.1", "10.0.0.2"]}
    resolver = Resolver(Addresses.parse("a:1,dns:///targets:5,10.0.0.1:5"))
    assert await resolver.resolve() == ["a:1", "10.0.0.1:5", "10.0.0.2:5"]
    names.answers = {"targets": ["10.0.0.3", "fd00::1"]}
    assert await resolver.resolve() == ["a:1", "10.0.0.3:5", "[fd00::1]:5", "10.0.0.1:5"]


async def test_what_cannot_be_looked_up_stays_what_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(addresses, "RESOLVE_SECONDS", 0.05)
    names = Names(monkeypatch)
    names.answers = {"targets": OSError(-2, "Name or service not known")}
    resolver = Resolver(Addresses.parse("dns:///targets:5"))
    with caplog.at_level(logging.WARNING):
        assert await resolver.resolve() == []
        assert await resolver.resolve() == []
    assert [record.message for record in caplog.records] == ["targets cannot be looked up: Name or service not known"]
    names.answers = {"targets": ["10.0.0.1"]}
    assert await resolver.resolve() == ["10.0.0.1:5"]
    names.answers = {"targets": 60.0}
    assert await resolver.resolve() == ["10.0.0.1:5"]

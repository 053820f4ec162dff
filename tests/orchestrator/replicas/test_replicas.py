"""Which replicas there are, and which one takes a sequence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from orchestrator.links.link import Link
from orchestrator.replicas.addresses import Addresses
from orchestrator.replicas.replicas import Replicas
from orchestrator.rest import Rest
from specdec.v1 import model_pb2


class FakeLink:
    """What replicas see of a link."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_available = True
        self.is_leaving = False
        self.problem = ""
        self.load = model_pb2.Load()
        self.rest = Rest()
        self.num_sequences = 0
        self.expected_sequences = 0
        self.is_started = self.is_closed = False

    def start(self) -> None:
        self.is_started = True

    async def close(self) -> None:
        self.is_closed = True

    def retire(self, *, is_retired: bool = True) -> None:
        self.is_leaving = is_retired


AnyLink = Link[Any, Any, Any]


class AllUsable(Replicas[AnyLink]):
    """None serves another model."""

    def mismatch_of(self, link: AnyLink) -> str:
        return ""


class Listed:
    """Replicas whose list a test changes."""

    def __init__(self, *addresses: str) -> None:
        self.num_changes = 0
        self.made: dict[str, FakeLink] = {}
        self.it = AllUsable(Addresses.parse("dns:///replicas:1"), self._make, self._count, resolve_seconds=0.01)
        self.addresses = list(addresses)
        self.it._resolver.resolve = self._resolve  # type: ignore[method-assign]

    async def _resolve(self) -> list[str]:
        return self.addresses

    def _make(self, address: str) -> AnyLink:
        self.made[address] = FakeLink(address)
        return cast("AnyLink", self.made[address])

    def _count(self) -> None:
        self.num_changes += 1

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(500):
            if condition():
                return
            await asyncio.sleep(0.005)
        pytest.fail("the condition did not come true")

    def chosen(self, **options: Any) -> str:
        link = self.it.choose(**options)
        return link.address if link is not None else ""


async def started(*addresses: str) -> Listed:
    listed = Listed(*addresses)
    listed.it.start()
    await listed.until(lambda: len(listed.it.links) == len(addresses))
    return listed


async def test_replicas_come_and_go_with_the_list() -> None:
    listed = await started("a:1", "b:1")
    assert all(link.is_started for link in listed.made.values())
    listed.made["a:1"].num_sequences = 1
    listed.addresses = ["b:1", "c:1"]
    await listed.until(lambda: "c:1" in listed.made)
    # What has sequences stays until it has none, and takes no more.
    assert listed.made["a:1"].is_leaving
    assert {link.address for link in listed.it.accepting()} == {"b:1", "c:1"}
    assert len(listed.it.links) == 3
    listed.made["a:1"].num_sequences = 0
    await listed.until(lambda: listed.made["a:1"].is_closed)
    assert len(listed.it.links) == 2
    await listed.it.close()
    assert all(link.is_closed for link in listed.made.values())
    assert listed.num_changes == 4


async def test_a_replica_that_is_listed_again_goes_on() -> None:
    listed = await started("a:1", "b:1")
    listed.made["a:1"].num_sequences = 1
    listed.addresses = ["b:1"]
    await listed.until(lambda: listed.made["a:1"].is_leaving)
    listed.addresses = ["a:1", "b:1"]
    await listed.until(lambda: not listed.made["a:1"].is_leaving)
    assert not listed.made["a:1"].is_closed
    await listed.it.close()


async def test_the_one_with_the_fewest_sequences_is_chosen() -> None:
    listed = await started("a:1", "b:1", "c:1")
    # Equals take turns.
    assert sorted(listed.chosen() for _ in range(3)) == ["a:1", "b:1", "c:1"]
    a, b, c = (listed.made[address] for address in ("a:1", "b:1", "c:1"))
    a.expected_sequences, b.expected_sequences, c.expected_sequences = 3, 2, 4
    assert listed.chosen() == "b:1"
    b.load.num_queued_sequences = 1
    assert listed.chosen() == "a:1"
    # Memory that is short weighs more than any number of sequences; where it is not known, it is no matter.
    a.load.num_free_tokens, b.load.num_free_tokens = 99, 100
    assert listed.chosen(num_tokens=100) in ("b:1", "c:1")
    c.expected_sequences = 9
    assert listed.chosen(num_tokens=100) == "b:1"
    assert listed.chosen(num_tokens=99) == "a:1"
    await listed.it.close()


async def test_a_prefix_that_is_there_makes_up_for_a_few_sequences() -> None:
    listed = await started("a:1", "b:1")
    listed.made["a:1"].expected_sequences = 3
    assert listed.chosen(cached={"a:1": 1024}) == "a:1"
    assert listed.chosen(cached={"a:1": 256}) == "b:1"
    listed.made["a:1"].expected_sequences = 5
    assert listed.chosen(cached={"a:1": 1 << 20}) == "b:1"
    await listed.it.close()


async def test_those_that_cannot_are_not_chosen_and_those_that_failed_only_as_the_last() -> None:
    listed = await started("a:1", "b:1", "c:1")
    a, b, c = (listed.made[address] for address in ("a:1", "b:1", "c:1"))
    a.is_available, b.is_leaving = False, True
    assert listed.chosen() == "c:1"
    assert listed.chosen(avoid=[c]) == ""
    b.is_leaving = False
    c.rest.failed(10.0)
    assert listed.chosen() == "b:1"
    assert listed.chosen(avoid=[b]) == "c:1"
    c.is_available = b.is_available = False
    assert not listed.it.is_available
    a.problem = "it is asleep"
    assert listed.it.problem == "none of its 3 replicas is; the first: it is asleep"
    await listed.it.close()


async def test_who_waits_is_woken_by_the_next_change() -> None:
    listed = await started("a:1")
    listed.made["a:1"].is_available = False
    assert not await listed.it.available(0.02)
    waiting = asyncio.create_task(listed.it.available(5))
    await asyncio.sleep(0.01)
    listed.made["a:1"].is_available = True
    listed.it.note_change()
    assert await waiting
    await listed.it.close()

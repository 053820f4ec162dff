"""The replicas of one service, each with a link of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from orchestrator.links.link import Link
from orchestrator.replicas.addresses import Addresses, Resolver

_log = logging.getLogger(__name__)

LinkT = TypeVar("LinkT", bound=Link[Any, Any, Any])

_QUEUED_SEQUENCES = 2
"""A sequence that waits for memory counts as so many that do not."""
_NO_MEMORY_SEQUENCES = 1000
"""A replica that has too little memory left comes after all others."""
_TOKENS_OF_A_SEQUENCE = 256
"""So many tokens of prefill that need not be computed make up for one sequence more on a replica."""
_MOST_FOR_PREFIX = 4.0
"""And not for more than so many, or one long prompt that all share would leave the other replicas idle."""


class Replicas(ABC, Generic[LinkT]):
    """Connects to every replica, follows the list of them, and chooses among those that take sequences.

    Args:
        addresses: where they are.
        make_link: makes the link to an address.
        on_change: called when a replica has come or gone, or has become available or unavailable.
        resolve_seconds: how often names are looked up again.
    """

    def __init__(
        self,
        addresses: Addresses,
        make_link: Callable[[str], LinkT],
        on_change: Callable[[], None],
        *,
        resolve_seconds: float = 2.0,
    ) -> None:
        self._resolver = Resolver(addresses)
        self._has_names = addresses.has_names
        self._resolve_seconds = resolve_seconds
        self._make_link = make_link
        self._report = on_change
        self._links: dict[str, LinkT] = {}
        self._num_chosen = 0
        self._chosen: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    @property
    def links(self) -> list[LinkT]:
        """To each replica that is listed, or has sequences still."""
        return list(self._links.values())

    @property
    def is_available(self) -> bool:
        """Whether any replica takes sequences."""
        return bool(self.accepting())

    @property
    def num_available(self) -> int:
        """Replicas that are connected, whether they take sequences or only have some."""
        return sum(link.is_available for link in self._links.values())

    @property
    def problem(self) -> str:
        """Why none is available, for people; of the first replica. Empty: one is."""
        if self.is_available:
            return ""
        links = self.links
        if not links:
            return "it has no address yet"
        reasons = [self.mismatch_of(link) or link.problem or "it takes no new sequences" for link in links]
        return reasons[0] if len(links) == 1 else f"none of its {len(links)} replicas is; the first: {reasons[0]}"

    def start(self) -> None:
        """Begin to connect; on the event loop that will use the links."""
        self._follower = asyncio.create_task(self._follow(), name="replicas")

    async def close(self) -> None:
        """End all links."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links.values()))

    @abstractmethod
    def mismatch_of(self, link: LinkT) -> str:
        """Why a replica cannot be used although it is available, with the two values named. Empty: it can."""

    def accepting(self, avoid: Collection[LinkT] = ()) -> list[LinkT]:
        """Those that take sequences now, except some; resting ones only if there are no others."""
        able = [
            link
            for link in self._links.values()
            if link.is_available and not link.is_leaving and link not in avoid and not self.mismatch_of(link)
        ]
        return [link for link in able if link.rest.is_over] or able

    def choose(
        self, num_tokens: int = 0, cached: Mapping[str, int] | None = None, avoid: Collection[LinkT] = ()
    ) -> LinkT | None:
        """The replica that a sequence is best opened on; None if there is none now.

        The one with the fewest sequences, after what is queued there, whether its memory is short, and what it has of
        the prefix have been counted as sequences more or fewer. Among equals the one that was chosen longest ago.

        Args:
            num_tokens: that the sequence may come to.
            cached: tokens of its beginning by the address of a replica that is likely to have them.
            avoid: not these.
        """

        def cost(link: LinkT) -> tuple[float, int]:
            load = link.load
            sequences: float = link.expected_sequences + _QUEUED_SEQUENCES * load.num_queued_sequences
            if load.HasField("num_free_tokens") and load.num_free_tokens < num_tokens:
                sequences += _NO_MEMORY_SEQUENCES
            saved = (cached or {}).get(link.address, 0) / _TOKENS_OF_A_SEQUENCE
            return sequences - min(saved, _MOST_FOR_PREFIX), self._chosen.get(link.address, 0)

        links = self.accepting(avoid)
        if not links:
            return None
        link = min(links, key=cost)
        self._num_chosen += 1
        self._chosen[link.address] = self._num_chosen
        return link

    async def changed(self, timeout_seconds: float) -> None:
        """Wait until something has changed, at most so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), max(timeout_seconds, 0.0))

    async def available(self, timeout_seconds: float) -> bool:
        """Wait until a replica takes sequences; False if none does in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while not self.is_available and loop.time() < deadline:
            await self.changed(deadline - loop.time())
        return self.is_available

    def note_change(self) -> None:
        """A link has changed; wakes all who wait."""
        self._changed.set()
        self._changed = asyncio.Event()
        self._report()

    async def _follow(self) -> None:
        """Keep the links to what is listed."""
        while True:
            try:
                await self._update(await self._resolver.resolve())
            except Exception:  # noqa: BLE001 - a bug, but replicas must still be found
                _log.exception("looking for replicas failed")
            if not self._has_names:
                return
            await asyncio.sleep(self._resolve_seconds)

    async def _update(self, addresses: list[str]) -> None:
        for address in addresses:
            if address in self._links:
                self._links[address].retire(is_retired=False)
            else:
                self._links[address] = link = self._make_link(address)
                link.start()
                self.note_change()
        for address, link in list(self._links.items()):
            if address in addresses:
                continue
            link.retire()
            if not link.is_available or not link.num_sequences:
                del self._links[address]
                self._chosen.pop(address, None)
                await link.close()
                self.note_change()

"""Draft and target in one process: the baseline that splitting them is measured against."""

from __future__ import annotations

import asyncio

import grpc

from specdec.serving.health import Health
from specdec.serving.host import Service


class ColocatedServices:
    """Two services at one address, which is ready when both are."""

    def __init__(self, target: Service, draft: Service) -> None:
        self._target = target
        self._draft = draft
        self.full_names = (*target.full_names, *draft.full_names)
        self.max_message_bytes = max(target.max_message_bytes, draft.max_message_bytes)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the methods of both to a server."""
        self._target.register(server)
        self._draft.register(server)

    async def start(self, health: Health) -> None:
        """Load the drafter, then the target, whose health is that of both."""
        await self._draft.start(Health(self._draft.full_names))
        await self._target.start(health)

    async def drain(self) -> None:
        """Wait for the open sequences of both."""
        await asyncio.gather(self._target.drain(), self._draft.drain())

    async def close(self) -> None:
        """Stop both."""
        await asyncio.gather(self._target.close(), self._draft.close())

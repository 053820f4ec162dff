"""One bidirectional stream that carries batched messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc.aio

from orchestrator.links.mailbox import LinkLost

_log = logging.getLogger(__name__)

_MAX_BATCH_BYTES = 1 << 20
"""Commands go into one message up to this size; a single larger one travels alone."""
_MAX_UNSENT_COMMANDS = 1 << 16
"""A peer that leaves this many commands unread has stopped reading."""


class MalformedMessage(Exception):
    """What the peer sent makes no sense, and may be meant for any sequence."""


class ProtobufMessage(Protocol):
    """What links need of the messages they carry."""

    def ByteSize(self) -> int: ...  # noqa: N802


Command = TypeVar("Command", bound=ProtobufMessage)
Response = TypeVar("Response", bound=ProtobufMessage)


class BatchedStream(Generic[Command, Response]):
    """Sends whatever is pending in one message, and hands each message that arrives to `deliver`.

    Args:
        call: the open stream.
        pack: makes one request message of commands.
        deliver: is called with each response, on the event loop; must not block. A `MalformedMessage` ends the stream.
    """

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[Any, Response],
        pack: Callable[[list[Command]], object],
        deliver: Callable[[Response], None],
    ) -> None:
        self._call = call
        self._pack = pack
        self._deliver = deliver
        self._unsent: list[Command] = []
        self._has_unsent = asyncio.Event()

    @property
    def num_unsent(self) -> int:
        """Commands that wait for the message before theirs to be on its way."""
        return len(self._unsent)

    @property
    def last_unsent(self) -> Command | None:
        """The last of them, which may still be added to."""
        return self._unsent[-1] if self._unsent else None

    def send(self, command: Command) -> None:
        """Queue a command for the next message.

        Raises:
            LinkLost: the peer has stopped reading.
        """
        if len(self._unsent) >= _MAX_UNSENT_COMMANDS:
            self._call.cancel()
            raise LinkLost("the peer has stopped reading")
        self._unsent.append(command)
        self._has_unsent.set()

    async def run(self) -> str:
        """Carry messages both ways until the stream ends; returns why it did, for people."""
        # To cancel a read is to end the call; so there is one reader, and it is cancelled only for that.
        reader = asyncio.create_task(self._read())
        sender = asyncio.create_task(self._send())
        try:
            await asyncio.wait({reader, sender}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            sender.cancel()
            outcomes = await asyncio.gather(reader, sender, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, grpc.aio.AioRpcError):
                return f"{outcome.code().name}: {outcome.details()}"
            if isinstance(outcome, MalformedMessage):
                return f"it sent a malformed message: {outcome}"
            # grpc reports writes on an ended call in several ways; what else is raised here is a bug.
            if isinstance(outcome, Exception) and not isinstance(outcome, asyncio.InvalidStateError):
                _log.error("a stream failed", exc_info=outcome)
        return "the peer ended the stream"

    async def _read(self) -> None:
        while (response := await self._call.read()) is not grpc.aio.EOF:
            self._deliver(cast("Response", response))

    async def _send(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            commands, self._unsent = self._unsent, []
            for batch in batches(commands):
                await self._call.write(self._pack(batch))


def batches(commands: list[Command]) -> list[list[Command]]:
    """Cut commands into runs of at most `_MAX_BATCH_BYTES`, in order; a larger command is a run of its own."""
    cut: list[list[Command]] = []
    room = 0
    for command in commands:
        size = command.ByteSize()
        if size > room or not cut:
            cut.append([])
            room = _MAX_BATCH_BYTES
        cut[-1].append(command)
        room -= size
    return cut

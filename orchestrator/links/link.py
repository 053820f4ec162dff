"""A supervised connection to one replica of a service."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic

import grpc.aio

from orchestrator.links.mailbox import Event, LinkLost, Mailbox
from orchestrator.links.patience import Patience
from orchestrator.links.stream import BatchedStream, Command, ProtobufMessage, Response
from orchestrator.links.watching import watch_health
from orchestrator.rest import Rest
from specdec import PROTOCOL_VERSION
from specdec.serving.channel import Keepalive, open_channel
from specdec.serving.channel_security import ChannelSecurity
from specdec.serving.security_error import SecurityError
from specdec.telemetry.metrics import LinkName, OrchestratorMetrics
from specdec.v1 import model_pb2

_log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
"""Longest wait for one answer of the handshake."""
MAX_MESSAGE_BYTES = 64 << 20
"""Largest message taken from a replica, such as the verdicts of many sequences with log-probabilities."""
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 2.0
_CLOSED = "the link is closed"
SILENCE_SECONDS = 2.0
"""By default, how long a replica may leave pings unanswered."""
_STEADY_SECONDS = 5.0
"""A connection that lasted this long was a good one: the next attempt comes soon."""


class HandshakeRefused(Exception):
    """The replica is not one to work with; the message names the two values that differ."""


class Link(ABC, Generic[Command, Response, Event]):
    """Owns the channel and the one stream to a replica, and connects again whenever they break.

    It is available between a handshake that passed and the end of the stream. Sequences live on the stream: when it
    ends, each of them learns it at once, through its mailbox. A replica that shuts down, or says that it is not well,
    is available still, for the sequences that it has: it is leaving.

    Args:
        address: of the replica.
        metrics: where traffic and stale events are counted.
        on_change: called when the link has become available or unavailable, or the reason has changed.
        security: certificates and secrets, read again for each attempt to connect; None: plaintext.
        silence_seconds: a replica that does not answer pings for so long is given up.
    """

    service_name: LinkName

    def __init__(
        self,
        address: str,
        metrics: OrchestratorMetrics,
        on_change: Callable[[], None],
        *,
        security: ChannelSecurity | None = None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self.address = address
        self._security = security
        # A ping after two fifths of the time without a word, and as long again and a little for its answer.
        self._keepalive = Keepalive(0.4 * silence_seconds, 0.5 * silence_seconds)
        self.model_info: model_pb2.ModelInfo | None = None
        """Facts from the last handshake that passed."""
        self.problem = "not connected yet"
        """Why the link is not available, for people. Empty: it is."""
        self.load = model_pb2.Load()
        """How busy the replica said it was."""
        self.patience = Patience(0.75 * silence_seconds)
        self.rest = Rest()
        """After failures of the replica others are preferred for a while."""
        self.heard = 0.0
        """When the last event came, by the clock of the event loop."""
        self._num_sequences_then = 0
        self._is_serving = True
        self._is_retired = False
        self._metrics = metrics
        self._on_change = on_change
        self._is_up = asyncio.Event()
        self._stream: BatchedStream[Command, Response] | None = None
        self._mailboxes: dict[bytes, Mailbox[Event]] = {}
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def is_available(self) -> bool:
        """The handshake passed and the stream is up."""
        return self._stream is not None

    @property
    def num_sequences(self) -> int:
        """Sequences open on this link."""
        return len(self._mailboxes)

    @property
    def num_unsent(self) -> int:
        """Commands that wait until the replica reads those before them."""
        return self._stream.num_unsent if self._stream is not None else 0

    @property
    def is_leaving(self) -> bool:
        """It takes no new sequences, and those that it has are better moved."""
        return self._is_retired or not self._is_serving

    @property
    def expected_sequences(self) -> int:
        """Sequences on the replica, of all orchestrators: as it said, and as it has changed from here since."""
        return max(self.load.num_sequences + self.num_sequences - self._num_sequences_then, self.num_sequences)

    def retire(self, *, is_retired: bool = True) -> None:
        """The replica is not listed any more, or is again."""
        if is_retired != self._is_retired:
            self._is_retired = is_retired
            self._on_change()

    def start(self) -> None:
        """Begin to connect; on the event loop that will use the link."""
        self._supervisor = asyncio.create_task(self._supervise(), name=f"{self.service_name} link")

    async def close(self) -> None:
        """End the stream and the channel. Sequences still open learn that the link is lost."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)

    async def available(self, timeout_seconds: float) -> bool:
        """Wait until the link is available; False if it is not in time."""
        if self.is_available:
            return True
        try:
            await asyncio.wait_for(self._is_up.wait(), timeout_seconds)
        except asyncio.TimeoutError:
            return False
        return self.is_available

    def attach(self, mailbox: Mailbox[Event], opening: Command) -> None:
        """Open a sequence: its events arrive in the mailbox from now on, in place of an older epoch's.

        Raises:
            LinkLost: the link is not available.
        """
        self.send(opening)
        self._mailboxes[mailbox.sequence_id] = mailbox

    def detach(self, mailbox: Mailbox[Event], closing: Command) -> None:
        """Close a sequence without waiting. Harmless if it was opened again since, or the stream is gone."""
        if self._stream is not None and self._mailboxes.get(mailbox.sequence_id) is mailbox:
            del self._mailboxes[mailbox.sequence_id]
            self._stream.send(closing)

    def _last_unsent(self) -> Command | None:
        """The command that would be sent last, if it can still be added to."""
        return self._stream.last_unsent if self._stream is not None else None

    def send(self, command: Command) -> None:
        """Send a command with the next message.

        Raises:
            LinkLost: the link is not available.
        """
        if self._stream is None:
            raise LinkLost(f"the {self.service_name} service is not available: {self.problem}")
        self._stream.send(command)

    @abstractmethod
    async def _handshake(self, channel: grpc.aio.Channel) -> model_pb2.ModelInfo:
        """Ask the replica what it is; raises `HandshakeRefused` or an RPC error."""

    @abstractmethod
    def _call(self, channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[Any, Response]:
        """Open the stream."""

    @abstractmethod
    def _pack(self, commands: list[Command]) -> ProtobufMessage:
        """One request message of commands."""

    @abstractmethod
    def _events(self, response: Response) -> Iterable[Event]:
        """The events in a response message."""

    @abstractmethod
    def _load(self, response: Response) -> model_pb2.Load | None:
        """The load in a response message; None: it has none."""

    def _packed(self, commands: list[Command]) -> ProtobufMessage:
        message = self._pack(commands)
        self._metrics.sent(self.service_name, message.ByteSize())
        return message

    def _deliver(self, response: Response) -> None:
        self._metrics.received(self.service_name, response.ByteSize())
        load = self._load(response)
        if load is not None:
            self.load, self._num_sequences_then = load, self.num_sequences
        now = asyncio.get_running_loop().time()
        for event in self._events(response):
            self.heard = now
            mailbox = self._mailboxes.get(event.sequence_id)
            if mailbox is None or not mailbox.put(event):
                self._metrics.stale_event(self.service_name)

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        pause_seconds = _FIRST_RETRY_SECONDS
        while True:
            began = loop.time()
            try:
                await self._connect_once()
            except HandshakeRefused as refused:
                self._note(str(refused))
            except SecurityError as error:
                # Clients hear of the problem; which files there are here is not for them.
                self._note("certificates or secrets of this orchestrator cannot be used, see its log", str(error))
            except grpc.aio.AioRpcError as error:
                self._note(f"{error.code().name}: {error.details()}")
            except Exception:  # noqa: BLE001 - a bug, but it must not leave the link down for good
                _log.exception("connecting to the %s service failed", self.service_name)
                self._note("an internal error, see the log")
            if loop.time() - began > _STEADY_SECONDS:
                pause_seconds = _FIRST_RETRY_SECONDS
            # Jitter, so that many orchestrators do not come back to a restarted replica all at once.
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
            pause_seconds = min(2 * pause_seconds, _LAST_RETRY_SECONDS)

    async def _connect_once(self) -> None:
        """Connect, and stay connected until the stream ends."""
        # A channel of its own for each attempt, so that grpc's backoff is not added to this one's.
        async with open_channel(
            self.address, max_message_bytes=MAX_MESSAGE_BYTES, keepalive=self._keepalive, security=self._security
        ) as channel:
            self.model_info = await self._handshake(channel)
            stream = BatchedStream(self._call(channel), self._packed, self._deliver)
            self.load, self._num_sequences_then = model_pb2.Load(), 0
            self._is_serving = True
            self._stream = stream
            self._is_up.set()
            self._note("")
            problem = _CLOSED
            health = asyncio.create_task(watch_health(channel, self._note_health))
            try:
                problem = await stream.run()
            finally:
                health.cancel()
                await asyncio.gather(health, return_exceptions=True)
                self._stream = None
                self._is_up.clear()
                lost, self._mailboxes = self._mailboxes, {}
                for mailbox in lost.values():
                    mailbox.fail(LinkLost(f"the stream to the {self.service_name} service broke"))
                self._note(problem)

    def _note_health(self, is_serving: bool) -> None:
        if is_serving != self._is_serving:
            self._is_serving = is_serving
            if not is_serving:
                _log.warning("the %s service at %s takes no new sequences", self.service_name, self.address)
            self._on_change()

    def _note(self, problem: str, log_only: str = "") -> None:
        """Keep, log and report a change of state; `log_only` is logged in place of the problem."""
        if problem == self.problem:
            return
        self.problem = problem
        if problem and problem != _CLOSED:
            reason = log_only or problem
            _log.warning("the %s service at %s is not available: %s", self.service_name, self.address, reason)
        elif not problem:
            _log.info("the %s service at %s is available", self.service_name, self.address)
        self._on_change()


def check_protocol_version(model_info: model_pb2.ModelInfo) -> None:
    """Raises `HandshakeRefused` if the replica speaks another version of the protocol."""
    if model_info.protocol_version != PROTOCOL_VERSION:
        raise HandshakeRefused(
            f"it speaks protocol version {model_info.protocol_version} and this orchestrator {PROTOCOL_VERSION}"
        )

"""What the draft and the target engine have in common: sequences of streams, commands on them, and answers."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from specdec.engine.connection import Connection
from specdec.engine.leases import LEASE_SECONDS, Leases
from specdec.engine.limits import LARGEST_CONTEXT_LENGTH, SEQUENCE_ID_BYTES
from specdec.engine.stream import Arrival
from specdec.engine.turnover import Turnover
from specdec.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    Refusal,
    ResourceExhaustedError,
    UnavailableError,
)
from specdec.telemetry.metrics import EngineMetrics
from specdec.v1 import draft_pb2, model_pb2, target_pb2

_MAX_FAILED_BATCHES = 3
"""Batches that may fail in a row before the engine gives up: then it is the device or the model, not a request."""
NOBODY_WAITS = asyncio.CancelledError()
"""Why work in progress ends when its sequence is closed."""

_log = logging.getLogger(__name__)

CommandT = TypeVar("CommandT", draft_pb2.DraftCommand, target_pb2.TargetCommand)
EventT = TypeVar("EventT", draft_pb2.DraftEvent, target_pb2.TargetEvent)


class EngineSequence(Protocol):
    """A sequence as an engine keeps it."""

    epoch: int


SequenceT = TypeVar("SequenceT", bound=EngineSequence)


class SequenceEngine(abc.ABC, Generic[CommandT, EventT, SequenceT]):
    """Keeps the sequences of every stream, carries out commands on them and collects the answers.

    A sequence is known by its stream and its id, so no stream can name another's. A command that is refused closes its
    sequence and is answered with the reason; nobody else notices.

    Args:
        make_event: the class of events.
        max_num_sequences: most sequences open at once.
        metrics: where the engine counts.
        lease_seconds: how long a sequence may be left alone before it is closed; see `_end_leases`.
    """

    def __init__(
        self,
        make_event: Callable[..., EventT],
        max_num_sequences: int,
        metrics: EngineMetrics,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._make_event: Callable[..., EventT] = make_event
        self._metrics = metrics
        self._max_num_sequences = max_num_sequences
        self._sequences: dict[Connection[EventT], dict[bytes, SequenceT]] = {}
        self._outbox: dict[Connection[EventT], list[EventT]] = {}
        self._num_failed_batches = 0
        self._turnover = Turnover()
        self._leases: Leases[tuple[Connection[EventT], bytes]] = Leases(lease_seconds)
        self.is_draining = False
        """Set from any thread: no further sequence is opened."""

    @property
    def num_sequences(self) -> int:
        """Sequences open now. May be read from any thread."""
        return sum(map(len, list(self._sequences.values())))

    @property
    def load(self) -> model_pb2.Load:
        """How busy it is. May be read from any thread."""
        return model_pb2.Load(num_sequences=self.num_sequences)

    def handle(self, arrivals: Sequence[Arrival[CommandT, EventT]]) -> None:
        """Carry out commands in order; what they ask to compute is left to `step`."""
        for connection, command, arrived in arrivals:
            if command is None:
                for sequence_id in list(self._sequences.get(connection, {})):
                    self._forget(connection, sequence_id)
                continue
            try:
                self._carry_out(connection, command, arrived)
            except Exception as error:  # noqa: BLE001 - a bug at worst, but of one command: other sequences go on
                self._refuse(connection, command, refusal_of(error, "a command failed"))
        self._metrics.open_sequences(self.num_sequences)
        self._flush()

    @property
    def patience_seconds(self) -> float:
        """How long it pays to wait for further commands before the next step; 0: not at all."""
        return 0.0

    def step(self) -> bool:
        """Do one batch of work and answer it. Returns whether there is more to do now."""
        self._end_leases()
        return self._work()

    @abc.abstractmethod
    def _work(self) -> bool:
        """As `step`."""

    @abc.abstractmethod
    def _owes(self, connection: Connection[EventT], sequence_id: bytes) -> bool:
        """Whether a sequence waits for this engine, and not the other way round."""

    def _end_leases(self) -> None:
        """Close the sequences that nobody has sent a command for since a lease began.

        Their streams are alive, so it is the orchestrator that has forgotten them, or is frozen while its transport
        still answers pings. One that is only slow opens the sequence again and goes on with the same text.
        """
        for holder in self._leases.expired():
            connection, sequence_id = holder
            sequence = self._sequences.get(connection, {}).get(sequence_id)
            if sequence is None:
                self._leases.end(holder)
            elif self._owes(connection, sequence_id):
                self._leases.renew(holder)
            else:
                self._metrics.lease_expired()
                refusal = FailedPreconditionError(
                    f"the sequence was left alone for {self._leases.seconds:g} s, which ends its lease; open it again"
                )
                self._fail(connection, sequence_id, sequence.epoch, 0, refusal)
        self._flush()

    @abc.abstractmethod
    def _carry_out(self, connection: Connection[EventT], command: CommandT, arrived: float) -> None:
        """Carry out one command; raises `Refusal`."""

    @abc.abstractmethod
    def _refuse(self, connection: Connection[EventT], command: CommandT, refusal: Refusal) -> None:
        """Answer a command that was refused."""

    def _admit(self, connection: Connection[EventT], sequence_id: bytes, epoch: int) -> bool:
        """Make room for a sequence that is opened; False if the open is a late message of an epoch that is over.

        Raises:
            InvalidArgumentError: malformed id or epoch.
            FailedPreconditionError: the epoch is open already.
            ResourceExhaustedError: too many sequences.
            UnavailableError: the service is draining.
        """
        if len(sequence_id) != SEQUENCE_ID_BYTES:
            raise InvalidArgumentError(f"sequence_id has {len(sequence_id)} bytes; it must have {SEQUENCE_ID_BYTES}")
        if epoch < 1:
            raise InvalidArgumentError("epoch is 0; epochs count from 1")
        known = self._sequences.get(connection, {}).get(sequence_id)
        if known is not None:
            if epoch < known.epoch:
                return False
            if epoch == known.epoch:
                raise FailedPreconditionError(f"epoch {epoch} is open already; the next one is {epoch + 1}")
            self._forget(connection, sequence_id)
        if self.is_draining:
            raise UnavailableError("this service is shutting down; open the sequence on another replica")
        if self.num_sequences >= self._max_num_sequences:
            raise ResourceExhaustedError(
                f"{self._max_num_sequences} sequences are open, which is the limit",
                self._turnover.wait_seconds(0),
            )
        return True

    def _keep(self, connection: Connection[EventT], sequence_id: bytes, sequence: SequenceT) -> None:
        self._sequences.setdefault(connection, {})[sequence_id] = sequence
        self._leases.renew((connection, sequence_id))
        self._turnover.begin(sequence)

    def _find(self, connection: Connection[EventT], sequence_id: bytes, epoch: int) -> SequenceT | None:
        """The sequence a command is for, its lease renewed; None if the command is a late message of an old epoch.

        Raises:
            FailedPreconditionError: as `_known`.
        """
        sequence = self._known(connection, sequence_id, epoch)
        if sequence is not None:
            self._leases.renew((connection, sequence_id))
        return sequence

    def _known(self, connection: Connection[EventT], sequence_id: bytes, epoch: int) -> SequenceT | None:
        """As `_find`, for commands that are owed an answer, with which the lease is renewed.

        Raises:
            FailedPreconditionError: no such sequence or epoch is open on this stream.
        """
        sequence = self._sequences.get(connection, {}).get(sequence_id)
        if sequence is None:
            raise FailedPreconditionError("the sequence is not open on this stream; open it first")
        if epoch > sequence.epoch:
            raise FailedPreconditionError(f"epoch {epoch} is not open; the open one is {sequence.epoch}")
        if epoch < sequence.epoch:
            return None
        return sequence

    def _forget(self, connection: Connection[EventT], sequence_id: bytes, reason: BaseException = NOBODY_WAITS) -> None:
        """Drop a sequence and its cache; harmless if there is none. `reason` is for the span of work in progress."""
        self._leases.end((connection, sequence_id))
        sequences = self._sequences.get(connection)
        if sequences is not None:
            self._turnover.end(sequences.pop(sequence_id, None))
            if not sequences:
                del self._sequences[connection]

    def _fail(
        self, connection: Connection[EventT], sequence_id: bytes, epoch: int, round_index: int, refusal: Refusal
    ) -> None:
        """Close a sequence and say why."""
        self._forget(connection, sequence_id, refusal)
        # An id that is too long is nobody's, and stays so when it is cut.
        event = self._make_event(sequence_id=sequence_id[: SEQUENCE_ID_BYTES + 1], epoch=epoch, round=round_index)
        event.failed.CopyFrom(refusal.to_status())
        self._send(connection, event)

    @abc.abstractmethod
    def _check_model(self) -> None:
        """Run the model over next to nothing; raises what is wrong with it."""

    def _pass_failed(self, error: Exception) -> Refusal:
        """What to tell the one sequence whose forward pass raised; raises it again if the model is what fails.

        A model that runs without that sequence is well, however often this happens. Where memory is short, a pass over
        next to nothing says little: there only passes of sequences count.
        """
        refusal = self._batch_failed(error)
        if not isinstance(refusal, ResourceExhaustedError):
            try:
                self._check_model()
            except Exception as problem:  # noqa: BLE001 - whatever a device may raise
                _log.error("the model does not run any more", exc_info=problem)
            else:
                self._num_failed_batches = 0
        return refusal

    def _batch_failed(self, error: Exception) -> Refusal:
        """What to tell the sequences of a batch whose forward pass raised; raises it again if that keeps happening."""
        refusal = refusal_of(error, "a forward pass failed")
        self._num_failed_batches += 1
        if self._num_failed_batches >= _MAX_FAILED_BATCHES:
            raise error
        return refusal

    def _send(self, connection: Connection[EventT], event: EventT) -> None:
        self._outbox.setdefault(connection, []).append(event)

    def _flush(self) -> None:
        """Hand every stream its answers, all at once."""
        for connection, events in self._outbox.items():
            connection.send(events)
        self._outbox.clear()


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception says that memory is short."""
    # torch.OutOfMemoryError, by name: drafters without a model need no torch.
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def refusal_of(error: Exception, what: str) -> Refusal:
    """What to tell a sequence that an exception has closed.

    Args:
        error: may be a refusal already; what else it is, is in the log.
        what: went wrong.
    """
    if isinstance(error, Refusal):
        return error
    _log.error("%s", what, exc_info=error)
    if is_out_of_memory(error):
        return ResourceExhaustedError(f"{what}: out of memory; the sequence's cache was dropped")
    return Refusal(f"{what}; the sequence's cache was dropped")


def check_prefix(base_length: int, checksum: int, known_length: int, known_checksum: int, what: str) -> None:
    """Refuse a message that stands on another committed prefix than the one known here.

    Args:
        base_length: committed length the message names.
        checksum: checksum it names.
        known_length: committed length known here.
        known_checksum: its checksum.
        what: the message, for the reason.

    Raises:
        FailedPreconditionError: they differ; the sequence must be opened again.
    """
    if base_length != known_length:
        raise FailedPreconditionError(
            f"the {what} stands on {base_length} tokens, but {known_length} are committed here; open the sequence again"
        )
    if checksum != known_checksum:
        raise FailedPreconditionError(f"the {what} names another checksum of the committed prefix; open it again")


def check_token_ids(
    name: str, token_ids: Sequence[int], vocab_size: int, max_length: int = LARGEST_CONTEXT_LENGTH
) -> None:
    """Refuse an empty list, one that is too long, and ids that the vocabulary does not have.

    Args:
        name: of the field, for the reason.
        token_ids: the ids.
        vocab_size: 0: any id.
        max_length: most ids.

    Raises:
        InvalidArgumentError: naming the field.
    """
    if not token_ids:
        raise InvalidArgumentError(f"{name} is empty; at least one token is needed")
    if len(token_ids) > max_length:
        raise InvalidArgumentError(f"{name} has {len(token_ids)} ids; at most {max_length} are taken")
    if vocab_size and max(token_ids) >= vocab_size:
        raise InvalidArgumentError(f"{name} has an id outside the vocabulary of {vocab_size}")

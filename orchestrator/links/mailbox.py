"""Where the events of one sequence arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from orchestrator.alarm import Alarm
from specdec.errors import Refusal, from_status
from specdec.v1 import draft_pb2, target_pb2

Event = TypeVar("Event", draft_pb2.DraftEvent, target_pb2.TargetEvent)

_ASIDE = frozenset({"candidates", "features", "prefilled"})
"""Kinds of events that answer nothing that is awaited."""


class LinkLost(Exception):
    """The stream to the replica broke, or was never there: what it knew of the sequence is gone."""


class AnswerOverdue(Exception):
    """The replica did not answer in time."""


class Mailbox(Generic[Event]):
    """Keeps the one event that is awaited and turns all others away.

    One epoch of one sequence, one waiter at a time. A failure of the sequence closes it for good.

    Args:
        sequence_id: of the sequence.
        epoch: of the sequence.
        aside: takes events that answer nothing, and says whether they were wanted; None: none are.
    """

    __slots__ = (
        "_alarm",
        "_aside",
        "_early",
        "_event",
        "_failure",
        "_foreseen",
        "_round",
        "_waiter",
        "epoch",
        "sequence_id",
    )

    def __init__(self, sequence_id: bytes, epoch: int, aside: Callable[[Event], bool] | None = None) -> None:
        self.sequence_id = sequence_id
        self.epoch = epoch
        self._aside: Callable[[Event], bool] | None = aside
        self._foreseen: set[int] = set()
        self._early: dict[int, Event] = {}
        self._round: int | None = None
        self._event: Event | None = None
        self._failure: LinkLost | Refusal | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._alarm = Alarm(self._wake)

    def expect(self, round_index: int) -> None:
        """From now on only the answer to this round is let in.

        Raises:
            LinkLost: the sequence is gone: the stream broke.
            Refusal: it is gone: the service refused or failed it.
        """
        if self._failure is not None:
            raise self._failure
        self._event = self._early.pop(round_index, None)
        self._round = round_index if self._event is None else None
        # What was foreseen further on may still come.
        self._foreseen = {foreseen for foreseen in self._foreseen if foreseen > round_index}
        self._early = {early: event for early, event in self._early.items() if early > round_index}

    def foresee(self, round_index: int) -> None:
        """An answer to this round may come before it is expected; it is kept until then."""
        self._foreseen.add(round_index)

    def put(self, event: Event) -> bool:
        """Let an event in; False if nobody waits for it: another epoch, another round, or a repeated answer."""
        if event.epoch != self.epoch:
            return False
        if event.HasField("failed"):
            # Whatever command it answers, the service has closed the sequence.
            self.fail(from_status(event.failed))
            return True
        if self._failure is not None:
            return False
        if event.WhichOneof("event") in _ASIDE:
            return self._aside is not None and self._aside(event)
        if event.round in self._foreseen:
            self._foreseen.discard(event.round)
            self._early[event.round] = event
            return True
        if event.round != self._round:
            return False
        self._round = None
        self._event = event
        self._wake()
        return True

    def fail(self, failure: LinkLost | Refusal) -> None:
        """The sequence is gone; whoever waits, now or later, gets `failure`."""
        if self._failure is None:
            self._failure = failure
            self._wake()

    @property
    def is_settled(self) -> bool:
        """Whether the event expected, or a failure, is there to be taken."""
        return self._event is not None or self._failure is not None

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait for the event expected, and let it in all the same if that was in vain. Returns `is_settled`."""
        if not self.is_settled:
            self._waiter = asyncio.get_running_loop().create_future()
            self._alarm.start(timeout_seconds)
            try:
                await self._waiter
            finally:
                self._alarm.stop()
                self._waiter = None
        return self.is_settled

    async def take(self, timeout_seconds: float) -> Event:
        """The event expected.

        Raises:
            LinkLost: the stream broke.
            Refusal: the service refused or failed the sequence.
            AnswerOverdue: it did not come in time. Should it come later, it is turned away.
        """
        await self.wait(timeout_seconds)
        return self.take_now()

    def take_now(self) -> Event:
        """The event expected, without waiting.

        Raises:
            LinkLost, Refusal, AnswerOverdue: as `take`.
        """
        if self._event is not None:
            event, self._event = self._event, None
            return event
        if self._failure is not None:
            raise self._failure
        self._round = None
        raise AnswerOverdue("the answer did not come in time")

    def close(self) -> None:
        """Nothing is waited for any more; harmless at any number of times."""
        self._alarm.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

"""What the draft engine asks of every drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draft_service.ahead.offer import Offer
from draft_service.sequence import Draft, DraftSequence
from specdec.v1 import model_pb2


class Drafter(Protocol):
    """Guesses tokens for many sequences. Called on the engine's thread only.

    A drafter keeps what it needs of a sequence under the sequence itself and drops it in `close`.
    """

    @property
    def info(self) -> model_pb2.ModelInfo:
        """What the service advertises."""

    def open(self, sequence: DraftSequence) -> None:
        """A sequence begins with its committed tokens."""

    def commit(self, sequence: DraftSequence, num_accepted: int) -> None:
        """A round is over: `sequence.token_ids` grew by `num_accepted` tokens of the last proposal and one more."""

    def close(self, sequence: DraftSequence) -> None:
        """A sequence ends; harmless if it is not open."""

    def advance(self, drafts: Sequence[Draft]) -> None:
        """Do one batch of work, appending to `token_ids` and setting `is_done` of the drafts that it finishes.

        Every draft not done is passed again; a drafter need not serve all of them each time, but must serve one.
        """

    def check(self) -> None:
        """Run the model, if there is one, over next to nothing; raises what is wrong with it."""

    @property
    def may_work_ahead(self) -> bool:
        """Whether `work_ahead` might find something to do."""

    def work_ahead(self) -> bool:
        """While nobody waits: do one batch of work for proposals that are likely to be asked for.

        Returns whether there was any to do.
        """

    def candidates(self) -> Sequence[Offer]:
        """Continuations that `work_ahead` has completed since they were last asked for, for those who want to know."""

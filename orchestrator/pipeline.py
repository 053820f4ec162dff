"""Whether the draft service is to draft ahead while windows are verified."""

from __future__ import annotations

import time
from typing import Literal

from specdec.planning.pipeline import Pipeline as Hiding
from specdec.v1 import draft_pb2

PipelineMode = Literal["off", "ahead", "candidates", "auto"]

_RATE = 0.05
"""Weight of one round in an average; all requests feed them."""
_NOTICEABLE = 0.05
"""Drafting that takes less of a round than this is not worth hiding."""
_HOPED_HITS = 0.5
"""Hit rate before any was measured."""
_BUSY = 0.5
"""A drafter whose queue takes this much of its time for drafting has no time left."""


class Pipeline:
    """One for all requests of an orchestrator.

    With "auto", drafting ahead is asked for where drafting takes a noticeable part of a round, and proposals do not
    queue. Both are averages of the rounds that had to draft: those that were drafted ahead say nothing of what drafting
    takes, so asking for it does not make it look needless.

    Args:
        mode: "off": never; "ahead": always; "candidates": always, and the target gets what was drafted ahead before its
            verdict; "auto": both by what is measured.
    """

    def __init__(self, mode: PipelineMode) -> None:
        self._mode = mode
        self._draft_seconds = 0.0
        self._queue_seconds = 0.0
        self._round_seconds = 0.0
        self._hit_rate = _HOPED_HITS

    def drafts_ahead(self) -> bool:
        """Whether to ask for it in the next round."""
        if self._mode != "auto":
            return self._mode != "off"
        return (
            self._draft_seconds > _NOTICEABLE * self._round_seconds
            and self._queue_seconds < _BUSY * self._draft_seconds
        )

    def hiding(self) -> Hiding:
        """What of a round is hidden at present, and how often, for the rule that chooses K."""
        if not self.drafts_ahead():
            return Hiding("off")
        return Hiding("candidates" if self.pushes_candidates else "ahead", self._hit_rate)

    @property
    def pushes_candidates(self) -> bool:
        """Whether what is drafted ahead goes to the target before its verdict."""
        return self._mode in ("candidates", "auto")

    def observe(self, proposal: draft_pb2.Proposal, round_seconds: float, *, was_asked: bool = False) -> None:
        """A proposal came.

        Args:
            proposal: with the draft service's timings.
            round_seconds: since the one before was asked for.
            was_asked: whether it could have been drafted ahead, the one before having asked for that.
        """
        if was_asked:
            # What a busy drafter left undone is no hit either.
            is_hit = proposal.ahead == draft_pb2.AHEAD_OUTCOME_HIT
            self._hit_rate += _RATE * (is_hit - self._hit_rate)
        rate = _RATE if self._round_seconds else 1.0
        self._round_seconds += rate * (round_seconds - self._round_seconds)
        if proposal.ahead == draft_pb2.AHEAD_OUTCOME_HIT or not proposal.token_ids:
            return
        rate = _RATE if self._draft_seconds else 1.0
        timings = proposal.timings
        self._draft_seconds += rate * (timings.compute_microseconds / 1e6 - self._draft_seconds)
        self._queue_seconds += rate * (timings.queue_microseconds / 1e6 - self._queue_seconds)


class PipelineOfRequest:
    """What one request tells of its rounds."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._asked: float | None = None
        self._round_seconds = 0.0
        self._is_wanted = self._was_wanted = False

    @property
    def pushes_candidates(self) -> bool:
        """See `Pipeline`."""
        return self._pipeline.pushes_candidates

    def asked(self) -> bool:
        """A proposal is asked for now. Returns whether to draft ahead once it is made."""
        now = time.perf_counter()
        if self._asked is not None:
            self._round_seconds = now - self._asked
        self._asked = now
        self._was_wanted, self._is_wanted = self._is_wanted, self._pipeline.drafts_ahead()
        return self._is_wanted

    def answered(self, proposal: draft_pb2.Proposal) -> None:
        """It came."""
        if self._round_seconds:
            self._pipeline.observe(proposal, self._round_seconds, was_asked=self._was_wanted)

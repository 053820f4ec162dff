"""What drafting gave in one round."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.window import EMPTY_WINDOW, Window
from specdec.v1 import draft_pb2, model_pb2


@dataclass(frozen=True, slots=True)
class Drafted:
    """What drafting gave in one round."""

    window: Window
    fallback_cause: str = ""
    """Why the round goes without the drafts that were wanted, a word for traces and metrics. Empty: it does not."""
    wait_seconds: float = 0.0
    timings: model_pb2.Timings | None = None
    """Where the draft service says its time went; None: there was no proposal."""
    source: draft_pb2.DraftSource.ValueType = draft_pb2.DRAFT_SOURCE_UNSPECIFIED
    """Where it says the draft tokens come from; may be a number that is not known here."""
    ahead: draft_pb2.AheadOutcome.ValueType = draft_pb2.AHEAD_OUTCOME_UNSPECIFIED
    """Whether it had drafted ahead for this round; may be a number that is not known here."""
    catches_up: bool = False
    """Whether its model had more tokens to run first than a round leaves behind, such as the prompt."""

    def without_features(self) -> Drafted:
        """The same, and the verdict need carry no features."""
        if self is NOTHING_DRAFTED:
            return _NOTHING_WANTED
        return replace(self, window=replace(self.window, without_features=True))


NOTHING_DRAFTED = Drafted(EMPTY_WINDOW)
_NOTHING_WANTED = Drafted(replace(EMPTY_WINDOW, without_features=True))
EMPTY = "empty"
"""Fallback cause of a proposal without tokens: the draft service had no guess, or no room in its context."""
PREFILL = "prefill"
"""Fallback cause while a draft model runs what it lacks, such as the prompt: the target goes on alone."""

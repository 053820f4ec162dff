"""Which draft replica serves one request, and how long those that failed it are left alone."""

from __future__ import annotations

from orchestrator.links.draft import DraftLink
from orchestrator.links.opening import Opening
from orchestrator.replicas.drafts import Drafts
from orchestrator.rest import Rest

_CAUSES_OF_REST = ("lost", "overdue")
"""Failures that are the replica's, whatever this request may have done."""


class DraftChoice:
    """Chooses for one request.

    Args:
        drafts: replicas of the draft service; None: there are none.
        opening: what the sequence is opened with.
    """

    def __init__(self, drafts: Drafts | None, opening: Opening) -> None:
        self._drafts = drafts
        self._opening = opening
        self._rests: dict[DraftLink, Rest] = {}
        self.cause = ""
        """Why there is none, a word for traces and metrics."""

    @property
    def likely(self) -> DraftLink | None:
        """The replica that is chosen next, or one like it; None: nothing is known of any."""
        return self._drafts.reference if self._drafts is not None else None

    def choose(self, num_tokens: int) -> DraftLink | None:
        """The replica to open the sequence on; None, with the cause noted, if there is none now.

        Args:
            num_tokens: of the sequence so far.
        """
        if self._drafts is None:
            self.cause = "unavailable"
            return None
        resting = [link for link, rest in self._rests.items() if not rest.is_over]
        link = self._drafts.choose(avoid=resting)
        if link is not None:
            self.cause = self._obstacle(link, num_tokens)
            return None if self.cause else link
        # While those that failed rest, what they failed by stays the cause.
        if not resting:
            self.cause = "mismatch" if self._drafts.mismatch else "unavailable"
        return None

    def worked(self, link: DraftLink) -> None:
        """It answered."""
        link.rest.worked()
        self._rests.pop(link, None)

    def failed(self, link: DraftLink, cause: str, seconds_lost: float) -> None:
        """It failed by a cause, and was waited for in vain for so long."""
        self.cause = cause
        self._rests.setdefault(link, Rest()).failed(seconds_lost)
        if cause in _CAUSES_OF_REST:
            link.rest.failed()

    def is_better_moved(self, link: DraftLink) -> bool:
        """Whether a replica shuts down while there is another one."""
        return link.is_leaving and self._drafts is not None and bool(self._drafts.accepting([link]))

    def _obstacle(self, link: DraftLink, num_tokens: int) -> str:
        if not link.suits(self._opening.acceptance_rule):
            return "mismatch"
        if link.feature_states and link.feature_states != tuple(self._opening.feature_states):
            # The request began before such a draft service was there, so the target tells it nothing.
            return "late"
        return "context" if is_past_context(link, num_tokens) else ""


def is_past_context(link: DraftLink | None, num_tokens: int) -> bool:
    """Whether the drafter's context has no room for another token."""
    return link is not None and link.model_info is not None and 0 < link.model_info.max_context_length <= num_tokens

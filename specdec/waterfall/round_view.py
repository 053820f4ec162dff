"""One round as it is drawn, whatever told of it."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.waterfall.parts import PARTS, Durations

PREFILL, RECOVERED, BONUS = "prefill", "recovered", "bonus"


@dataclass(frozen=True, slots=True)
class RoundView:
    """A round; index 0 is the prefill, which commits the first token."""

    index: int
    start_seconds: float
    """Since the request began."""
    wall_seconds: float
    durations: Durations
    base_length: int = 0
    """Committed tokens before it."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    next_token_kind: str = ""
    """`prefill`, `recovered` or `bonus`; empty: it committed nothing."""
    draft_source: str = ""
    """Where the draft tokens came from; empty: there are none."""
    ahead: str = ""
    """`hit` or `miss` if the draft service had drafted ahead, else empty."""
    is_candidate: bool = False
    """Whether the target had the window before the round began."""
    fallback: str = ""
    """Why it went without the drafts that were wanted; empty: it did not, or that is not known."""
    batch_sequences: int = 0
    """Sequences in the forward pass that verified it; 0: not known."""
    events: tuple[str, ...] = ()
    """`failover`, `resync` or `K=4`, in order."""
    error: str = ""
    """Why it failed; empty: it did not."""

    @property
    def num_tokens(self) -> int:
        """Tokens that it committed, before any trimming at a stop."""
        return self.num_accepted_tokens + bool(self.next_token_kind)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is remarkable of it, in words."""
        notes = []
        if self.is_candidate:
            notes.append("candidate")
        elif self.ahead == "hit":
            notes.append("ahead")
        elif self.ahead == "miss":
            notes.append("ahead missed")
        if self.fallback:
            notes.append(f"no draft: {self.fallback}")
        notes.extend(self.events)
        if self.error:
            notes.append(f"failed: {self.error}")
        return tuple(notes)

    def to_dict(self) -> dict[str, object]:
        """As JSON values; durations in seconds."""
        parts = {part.name: round(self.durations.parts.get(part.name, 0.0), 6) for part in PARTS}
        return {
            "round": self.index,
            "start_seconds": round(self.start_seconds, 6),
            "wall_seconds": round(self.wall_seconds, 6),
            "parts_seconds": parts,
            "hidden_seconds": round(self.durations.hidden_seconds, 6),
            "base_length": self.base_length,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "next_token_kind": self.next_token_kind or None,
            "draft_source": self.draft_source or None,
            "draft_ahead": self.ahead or None,
            "is_candidate": self.is_candidate,
            "fallback": self.fallback or None,
            "batch_sequences": self.batch_sequences or None,
            "events": list(self.events),
            "error": self.error or None,
        }

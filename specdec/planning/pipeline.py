"""How long a round takes, by how much of it is hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

PipelineMode = Literal["off", "ahead", "candidates"]
PIPELINE_MODES: tuple[PipelineMode, ...] = get_args(PipelineMode)


@dataclass(frozen=True)
class RoundParts:
    """What a round with draft tokens is made of, in seconds."""

    drafting: float
    """K steps of the drafter."""
    verify: float
    """A pass of the target."""
    network: float
    """Between orchestrator and target, there and back, and whatever else passes between two passes."""
    draft_network: float = 0.0
    """Between orchestrator and drafter, there and back."""

    @property
    def latency(self) -> float:
        """From one verdict to the next when nothing is hidden."""
        return self.drafting + self.draft_network + self.network + self.verify


@dataclass(frozen=True)
class Pipeline:
    """How drafting and network are hidden behind verification, and how often that comes off.

    Raises:
        ValueError: the hit probability is none, or no round is ahead.
    """

    mode: PipelineMode
    hit_probability: float = 0.0
    """h: how often the outcome of a round (accepted count and next token) was among those drafted for."""
    rounds_ahead: int = 1
    """m, of the mode `candidates`: how many rounds a candidate is ahead of the window that follows the last verdict
    its drafter knew. 1: while a window is judged, candidates for its outcomes are sent."""

    def __post_init__(self) -> None:
        if not 0 <= self.hit_probability <= 1:
            raise ValueError("a hit probability is between 0 and 1")
        if self.rounds_ahead < 1:
            raise ValueError("candidates are at least one round ahead")

    def round_seconds(self, parts: RoundParts) -> float:
        """Mean time from one verdict to the next, for one request in the long run.

        With v the pass, D the drafting (its own network included), RTT the network and L = v + RTT + D:

        - off: `L`.
        - ahead: the drafter goes on drafting from when the window is sent until its verdict is back, v + RTT later. On
          a hit that work, or as much of it as fits, was free: `L - h * min(D, v + RTT)`.
        - candidates: a miss takes `L`. On a hit the target has the next window already, and the next verdict follows
          after `x = max(v, D)`, whatever the RTT: passes follow each other, or drafts do. But a candidate for a round
          can be m rounds ahead of the last known verdict and no more: its drafter must have seen that verdict, which
          was L before. So of the hits in a row every (m + 1)-th takes `y = max(x, L - m * x)`. Runs of hits have
          geometric lengths, so of all rounds the share `h^(m+1) / (1 + h + ... + h^m)` takes y:
          `(1 - h) * L + h * x + (y - x) * h^(m+1) / (1 + h + ... + h^m)`. For m without end this is
          `(1 - h) * L + h * x`: the RTT is gone. Messages of the drafter's own link follow each other, so in x the
          drafting counts without its network.
        """
        return sum(share * seconds for share, seconds in self.outcomes(parts))

    def outcomes(self, parts: RoundParts) -> tuple[tuple[float, float], ...]:
        """How often a round takes how long, in seconds; the shares add up to 1. See `round_seconds`."""
        h, latency = self.hit_probability, parts.latency
        if self.mode == "off":
            return ((1.0, latency),)
        if self.mode == "ahead":
            hidden = min(parts.drafting + parts.draft_network, parts.verify + parts.network)
            return ((1.0 - h, latency), (h, latency - hidden))
        hit = max(parts.verify, parts.drafting)
        held_up = max(hit, latency - self.rounds_ahead * hit)
        share = h ** (self.rounds_ahead + 1) / sum(h**power for power in range(self.rounds_ahead + 1))
        return ((1.0 - h, latency), (h - share, hit), (share, held_up))

    def drafting_rounds(self) -> float:
        """Windows that the drafter makes for each round: one, and one more that is wasted for each miss."""
        return 1.0 if self.mode == "off" else 2.0 - self.hit_probability

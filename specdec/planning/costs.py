"""What the parts of a round cost in time."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.planning.pass_costs import PassCosts


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Of one pair of models on their devices.

    The orchestrator stands between target and drafter, usually beside the drafter: then `rtt_seconds` is the whole
    network, and is what the formulas call RTT.

    Raises:
        ValueError: a time is negative.
    """

    draft: PassCosts
    """Of a drafting step on the draft device: one row a sequence, one token each."""
    verify: PassCosts
    """Of a pass of the target: K + 1 rows a sequence."""
    rtt_seconds: float = 0.0
    """Between orchestrator and target, there and back."""
    draft_rtt_seconds: float = 0.0
    """Between orchestrator and drafter, there and back."""
    overhead_seconds: float = 0.0
    """What a round of the services takes besides: messages, commits, waiting for a turn. It passes between two
    passes of the target as the network does, and is hidden when the network is."""
    colocated_draft: PassCosts | None = None
    """Of a drafting step on the target's device; None: as on the draft device."""

    def __post_init__(self) -> None:
        if min(self.rtt_seconds, self.draft_rtt_seconds, self.overhead_seconds) < 0:
            raise ValueError("round trips and overhead are not negative")

    @property
    def draft_beside_target(self) -> PassCosts:
        """Of a drafting step on the target's device."""
        return self.colocated_draft or self.draft

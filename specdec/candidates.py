"""Which candidate window a round goes on with: the target and the orchestrator must come to the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_CANDIDATES = 16
"""Most candidate windows of one round."""


class RoundOutcome(NamedTuple):
    """What became of a window that was a chain."""

    num_accepted_tokens: int
    next_token_id: int


def outcome_of(accepted_nodes: Sequence[int], next_token_id: int) -> RoundOutcome | None:
    """What candidates may have been sent for; None: the accepted nodes are not the first ones of a chain."""
    count = len(accepted_nodes)
    return RoundOutcome(count, next_token_id) if list(accepted_nodes) == list(range(count)) else None

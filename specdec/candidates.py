"""Which candidate window a round goes on with: the target and the orchestrator must come to the same answer."""

from __future__ import annotations

from typing import NamedTuple

from specdec.v1 import target_pb2

MAX_CANDIDATES = 16
"""Most candidate windows of one round."""


class RoundOutcome(NamedTuple):
    """What became of a window that was a chain."""

    num_accepted_tokens: int
    next_token_id: int


def outcome_of(verdict: target_pb2.Verdict) -> RoundOutcome | None:
    """What candidates may have been sent for; None: the accepted nodes are not the first ones of a chain."""
    count = len(verdict.accepted_nodes)
    if list(verdict.accepted_nodes) != list(range(count)):
        return None
    return RoundOutcome(count, verdict.next_token_id)

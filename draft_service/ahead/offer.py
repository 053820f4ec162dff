"""Continuations that are told before it is known which of them is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.ahead.tree import Branch
from draft_service.sequence import DraftSequence


@dataclass(frozen=True, slots=True)
class Offer:
    """Continuations of one proposal."""

    sequence: DraftSequence
    round: int
    """Of the proposal."""
    base_length: int
    """Committed length that it continues."""
    branches: Sequence[Branch]
    """The likeliest first."""

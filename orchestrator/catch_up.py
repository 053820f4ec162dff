"""How long a draft model that has much to run first is waited for."""

from __future__ import annotations

import math
from collections.abc import Callable

from specdec.v1 import draft_pb2, model_pb2

_RATE = 0.2
"""Weight of one proposal in the average."""
_FEW_TOKENS = 32
"""A model that lacks no more is always waited for: it is one small pass, and few rounds leave more behind."""
_LOOKUP_SECONDS = 0.01
"""Lookup takes microseconds. What takes longer waits behind a pass of the model for others, and is not worth a wait."""
_LEAST_SECONDS = 0.01
"""What a proposal may take that is all but there, network included."""


class CatchUp:
    """One for all requests of an orchestrator.

    A target decodes without drafts as well. While a model prefills, waiting for it costs the plain rounds that could be
    had meanwhile; going on without it costs one round that could have had drafts, since what comes in mid-round is not
    used. So it is waited for as long as a plain round takes, and not at all where that is expected to be in vain.

    Args:
        plain_seconds: expected duration of a round without draft tokens; 0: not known.
    """

    def __init__(self, plain_seconds: Callable[[], float] = lambda: 0.0) -> None:
        self._plain_seconds = plain_seconds
        self._seconds_per_token = 0.0

    def patience_seconds(self, num_tokens: int, *, by_lookup: bool = False) -> float:
        """Longest wait for a proposal; infinite if there is little to do before it.

        Args:
            num_tokens: that a model has to run first.
            by_lookup: only lookup is asked, beside a model.
        """
        if by_lookup:
            return _LOOKUP_SECONDS
        if num_tokens <= _FEW_TOKENS:
            return math.inf
        most = max(self._plain_seconds(), _LEAST_SECONDS)
        return most if num_tokens * self._seconds_per_token <= most else 0.0

    def observe(self, num_tokens: int, timings: model_pb2.Timings) -> None:
        """A model had so many tokens to run first; `timings` are of the proposal."""
        if num_tokens > _FEW_TOKENS:
            seconds = (timings.queue_microseconds + timings.compute_microseconds) / 1e6
            rate = _RATE if self._seconds_per_token else 1.0
            self._seconds_per_token += rate * (seconds / num_tokens - self._seconds_per_token)


class CatchUpOfRequest:
    """How far a draft model is with the tokens of one sequence.

    Args:
        catch_up: of all requests.
    """

    def __init__(self, catch_up: CatchUp) -> None:
        self._catch_up = catch_up
        self.run_length = 0
        """Tokens that it is known to have run since the sequence was opened."""
        self.num_lacking = 0
        """Tokens that it has to run before it can propose anything; 0: it is not asked."""

    def opened(self) -> None:
        """The sequence begins anew."""
        self.run_length = self.num_lacking = 0

    def patience_seconds(self, *, by_lookup: bool) -> float:
        """See `CatchUp.patience_seconds`."""
        return self._catch_up.patience_seconds(self.num_lacking, by_lookup=by_lookup)

    def proposed(self, proposal: draft_pb2.Proposal) -> None:
        """It has made a proposal, and so has run what came before."""
        self._catch_up.observe(self.num_lacking, proposal.timings)
        self.run_length = proposal.base_length

"""Lookup or model: which of the two is expected to bring more tokens in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draft_service.drafters.acceptance_estimate import AcceptanceEstimate, expected_accepted
from draft_service.drafters.suffix_lookup import Found

_MODEL_PRIOR = 0.5
_KINDS_OF_CONFIDENCE = 10

Kind = tuple[int, int]
"""Source of a lookup, and its confidence in tenths."""


@dataclass(slots=True)
class ServiceEstimates:
    """What all sequences have shown."""

    model: AcceptanceEstimate = field(default_factory=AcceptanceEstimate)
    lookups: dict[Kind, AcceptanceEstimate] = field(default_factory=dict)

    def of_lookup(self, found: Found) -> AcceptanceEstimate:
        """The estimate for lookups of this kind."""
        kind = (found.source, int(found.confidence * _KINDS_OF_CONFIDENCE))
        return self.lookups.setdefault(kind, AcceptanceEstimate())


class SourceChoice:
    """Chooses for one sequence, and learns from each of its rounds.

    If `a` is the chance that a draft token is accepted once those before it are, a window of `n` draft tokens brings
    `1 + a + a^2 + ... + a^n` tokens, the target's own included. The best lookup is taken if it brings at least
    `1 / model_cost` of what the model does. A `model_cost` above 1 says that a round with the model takes longer;
    `1 + K * t_draft / t_verify` would be all that it takes, a little above 1 only gives near-ties to the lookup.

    `a` of a lookup is measured by source and confidence, over all sequences, with the confidence as the prior: in every
    round, whoever made the window, since what was committed tells what would have been accepted. `a` of the model is
    measured for the sequence, with that over all sequences as the prior, when the model was asked. What it has shown
    fades in the other rounds, so that it comes to be asked again. Nothing here is random or looks at a clock.

    Args:
        service: what all sequences have shown; changed by this one.
        model_cost: what a round with the model costs, in rounds with a lookup.
    """

    def __init__(self, service: ServiceEstimates, model_cost: float) -> None:
        self._service = service
        self._model_cost = model_cost
        self._model = AcceptanceEstimate()

    def choose(self, offers: Sequence[Found], num_wanted: int) -> Found | None:
        """What makes the window: the best offer, or None for the model.

        Args:
            offers: of the lookup, each with tokens; of equals the first is taken.
            num_wanted: most draft tokens, which the model is expected to give.
        """
        best = max(offers, key=self._expected, default=None)
        if best is None:
            return None
        rate = self._model.rate(self._service.model.rate(_MODEL_PRIOR))
        by_model = 1.0 + expected_accepted(rate, num_wanted)
        return best if (1.0 + self._expected(best)) * self._model_cost >= by_model else None

    def _expected(self, found: Found) -> float:
        return expected_accepted(self._service.of_lookup(found).rate(found.confidence), len(found.token_ids))

    def learn(
        self, offers: Sequence[Found], model_tokens: Sequence[int] | None, num_wanted: int, committed: Sequence[int]
    ) -> None:
        """A round is over.

        Args:
            offers: of the lookup.
            model_tokens: what the model proposed; None: it was not asked.
            num_wanted: most draft tokens.
            committed: tokens that the round committed.
        """
        for offer in offers:
            hits = _common_length(offer.token_ids, committed)
            was_rejected = hits < min(len(offer.token_ids), len(committed))
            self._service.of_lookup(offer).add(hits, was_rejected=was_rejected)
        if model_tokens is None:
            self._model.fade()
            return
        hits = _common_length(model_tokens, committed)
        # A model that ends its window early saw the next token rejected in advance.
        ended = hits < min(num_wanted, len(committed))
        for estimate in (self._model, self._service.model):
            estimate.add(hits, was_rejected=ended)


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that two lists begin with alike."""
    for length, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return length
    return min(len(first), len(second))

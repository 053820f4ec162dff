"""Which of the three ways to buy, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.planning.offer import Offer, Way

_NOT_WORTH_IT = 1.02
"""A way with more parts must save more than this share; that is within what the figures are good for."""


@dataclass(frozen=True)
class Verdict:
    """What to buy."""

    way: Way | None
    """None: none of the three keeps the goal."""
    reason: str
    """In a sentence."""


def judge(offers: Sequence[Offer | None]) -> Verdict:
    """The cheapest token; where there are no prices, the most tokens a second of one target, draft devices for nothing.

    Args:
        offers: of target-only, co-located and split, the way with fewest parts first; None where the goal is not kept.
    """
    possible = [offer for offer in offers if offer is not None]
    if not possible:
        return Verdict(None, "none of the three keeps the latency goal, not even for a single client")
    best = min(map(_expense, possible))
    chosen = next(offer for offer in possible if _expense(offer) <= best * _NOT_WORTH_IT)
    others = [offer for offer in possible if offer is not chosen]
    against = "".join(f", {_price(offer)} {offer.way}" for offer in others)
    unit = "tokens/s" if chosen.dollars_per_million_tokens is None else "per million tokens"
    return Verdict(chosen.way, f"{_price(chosen)} {unit}{against}: {_cause(chosen, others)}")


def _expense(offer: Offer) -> float:
    """To be small."""
    dollars = offer.dollars_per_million_tokens
    return 1 / offer.tokens_per_second if dollars is None else dollars


def _price(offer: Offer) -> str:
    if offer.dollars_per_million_tokens is None:
        return f"{offer.tokens_per_second:,.0f}"
    return f"${offer.dollars_per_million_tokens:.3g}"


def _cause(chosen: Offer, others: Sequence[Offer]) -> str:
    by_way = {offer.way: offer for offer in others}
    colocated, alone, split = by_way.get("co-located"), by_way.get("target-only"), by_way.get("split")
    if not others:
        return f"only {chosen.way} keeps the latency goal"
    if chosen.way == "target-only":
        best = max(others, key=lambda offer: offer.tokens_per_second)
        return f"the target alone writes {_output(chosen)}, with drafts {_output(best)}, which does not pay for them"
    if chosen.way == "split" and colocated is not None:
        drafts = f"{chosen.drafts_per_target:.3g} draft device{'s' if chosen.drafts_per_target > 1 else ''} a target"
        return f"the target writes {_output(chosen)}, and if it drafts as well {_output(colocated)}: worth {drafts}"
    with_drafts = f"with drafts the target writes {_output(chosen)}"
    without = "" if alone is None else f", without {_output(alone)}"
    elsewhere = (
        "" if split is None else f"; drafted elsewhere {_output(split)}, which does not pay for the draft devices"
    )
    return with_drafts + without + elsewhere


def _output(offer: Offer) -> str:
    return (
        f"{offer.tokens_per_second:,.0f} tokens/s for {offer.num_clients} client{'s' if offer.num_clients > 1 else ''}"
    )

"""How slow a client's text may be."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.planning.pass_costs import PassCosts
from specdec.planning.request_mix import RequestMix


@dataclass(frozen=True, kw_only=True)
class LatencyGoal:
    """A mean time per output token (TPOT), or a time per request.

    Raises:
        ValueError: not exactly one of them, or not above 0.
    """

    tpot_seconds: float | None = None
    request_seconds: float | None = None
    """From sending a request to its last token."""

    def __post_init__(self) -> None:
        given = [seconds for seconds in (self.tpot_seconds, self.request_seconds) if seconds is not None]
        if len(given) != 1 or given[0] <= 0:
            raise ValueError("a latency goal is a time per token or a time per request, above 0")

    def longest_tpot(self, mix: RequestMix, verify: PassCosts, rtt_seconds: float) -> float:
        """The time per token that keeps the goal for every kind of request; 0 or less: none does.

        Of a time per request the first token takes a prefill in a pass of its own and a round trip, and the others
        share the rest.
        """
        if self.tpot_seconds is not None:
            return self.tpot_seconds
        assert self.request_seconds is not None  # noqa: S101 - one of them is given
        return min(
            (self.request_seconds - verify.seconds(kind.prompt_tokens) - rtt_seconds) / max(1, kind.output_tokens - 1)
            for kind in mix.kinds
        )

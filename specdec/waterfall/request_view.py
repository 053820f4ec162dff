"""A request as it is drawn: its rounds, and what they add up to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from specdec.waterfall.parts import PARTS
from specdec.waterfall.round_view import RoundView

_TYPICAL = 4.0
"""A round that takes longer than so many typical ones is cut where it is drawn, so that the others can be seen."""


@dataclass(frozen=True)
class RequestView:
    """A request. What is None, 0 or empty is not known."""

    rounds: tuple[RoundView, ...]
    """In the order of their beginning; the prefill is among them. Of several completions those of all."""
    request_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    model: str = ""
    acceptance_rule: str = ""
    status: str = ""
    """gRPC status that it ended with; empty while it runs."""
    finish_reason: str = ""
    began_unix_seconds: float | None = None
    duration_seconds: float | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_generated_tokens: int | None = None
    """After trimming at a stop."""
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    """Mean time of each token after the first."""
    num_fallback_rounds: int | None = None
    """Rounds without the drafts that were wanted."""

    @property
    def decode_rounds(self) -> tuple[RoundView, ...]:
        """The rounds without prefills."""
        return tuple(each for each in self.rounds if each.index > 0)

    @property
    def num_rounds(self) -> int:
        """Rounds after the prefill that committed something."""
        return sum(1 for each in self.decode_rounds if each.next_token_kind)

    @property
    def num_prefills(self) -> int:
        """One for each completion."""
        return len(self.rounds) - len(self.decode_rounds)

    @property
    def num_draft_tokens(self) -> int:
        """Draft tokens verified."""
        return sum(each.num_draft_tokens for each in self.decode_rounds)

    @property
    def num_accepted_tokens(self) -> int:
        """Draft tokens accepted."""
        return sum(each.num_accepted_tokens for each in self.decode_rounds)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted; None: nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / rounds: the bonus or recovered token is counted. None without rounds."""
        return 1 + self.num_accepted_tokens / self.num_rounds if self.num_rounds else None

    @property
    def part_seconds(self) -> Mapping[str, float]:
        """Of all rounds together, prefills too; only those parts that there are."""
        totals = {part.name: sum(each.durations.parts.get(part.name, 0.0) for each in self.rounds) for part in PARTS}
        return {name: seconds for name, seconds in totals.items() if seconds > 0}

    @property
    def hidden_seconds(self) -> float:
        """Work of the services that nobody waited for."""
        return sum(each.durations.hidden_seconds for each in self.rounds)

    @property
    def scale_seconds(self) -> float:
        """What the full length of a bar stands for; a few rounds may be longer than that."""
        walls = [each.wall_seconds for each in self.decode_rounds] or [each.wall_seconds for each in self.rounds]
        if not any(walls):
            return 1.0
        return min(max(walls), _TYPICAL * statistics.median(walls)) or max(walls)

    def to_dict(self) -> dict[str, object]:
        """As JSON values; durations in seconds."""
        return {
            **self.summary(),
            "part_seconds": {name: round(seconds, 6) for name, seconds in self.part_seconds.items()},
            "hidden_seconds": round(self.hidden_seconds, 6),
            "rounds": [each.to_dict() for each in self.rounds],
        }

    def summary(self) -> dict[str, object]:
        """The same without its rounds."""
        return {
            "request_id": self.request_id or None,
            "trace_id": self.trace_id or None,
            "model": self.model or None,
            "acceptance_rule": self.acceptance_rule or None,
            "status": self.status or None,
            "finish_reason": self.finish_reason or None,
            "began_unix_seconds": self.began_unix_seconds,
            "duration_seconds": self.duration_seconds,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_generated_tokens": self.num_generated_tokens,
            "ttft_seconds": self.ttft_seconds,
            "tpot_seconds": self.tpot_seconds,
            "num_rounds": self.num_rounds,
            "num_fallback_rounds": self.num_fallback_rounds,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
        }

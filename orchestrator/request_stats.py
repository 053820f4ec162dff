"""What a completion adds up to, for its last message."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.drafted import EMPTY, PREFILL
from orchestrator.output import Finish
from orchestrator.rounds import Round
from specdec.telemetry import names
from specdec.telemetry.tracing import AttributeValue
from specdec.v1 import generation_pb2


class RequestStats:
    """Sums over the rounds of one completion. The prefill is not a round.

    Args:
        admitted: when the request was admitted, in seconds of `time.perf_counter`, as all times here.
        num_prompt_tokens: of the request.
        num_resumed_tokens: that the client had already; counted in its usage and nowhere else.
    """

    def __init__(self, admitted: float, num_prompt_tokens: int, num_resumed_tokens: int = 0) -> None:
        self._num_resumed_tokens = num_resumed_tokens
        self._admitted = admitted
        self._first_token_at = admitted
        self._last_token_at = admitted
        self.num_rounds = 0
        self.num_fallback_rounds = 0
        self.num_prompt_tokens = num_prompt_tokens
        self.num_generated_tokens = 0
        self.num_cached_tokens = 0
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0

    @property
    def ttft_seconds(self) -> float:
        """From admission to the first token."""
        return self._first_token_at - self._admitted

    @property
    def seconds_per_output_token(self) -> float | None:
        """Mean time of each token after the first; None if there is none."""
        num_later = self.num_generated_tokens - 1
        return (self._last_token_at - self._first_token_at) / num_later if num_later > 0 else None

    def add(self, done: Round, num_tokens: int, now: float) -> float:
        """Take in a round that was committed `now`, of which `num_tokens` are part of the output.

        Returns:
            Seconds since the round before, or since the admission.
        """
        seconds_since_last, self._last_token_at = now - self._last_token_at, now
        self.num_generated_tokens += num_tokens
        if done.index == 0:
            self._first_token_at = now
            self.num_cached_tokens = min(done.judged.num_cached_tokens, self.num_prompt_tokens)
            return seconds_since_last
        self.num_rounds += 1
        self._num_draft_tokens += done.num_draft_tokens
        self._num_accepted_tokens += done.num_accepted_tokens
        # A drafter without a guess, or with a prompt to read first, is at work; it is not missed.
        if done.drafted.fallback_cause not in ("", EMPTY, PREFILL):
            self.num_fallback_rounds += 1
        return seconds_since_last

    def usage(self) -> generation_pb2.Usage:
        """Tokens counted."""
        return generation_pb2.Usage(
            num_prompt_tokens=self.num_prompt_tokens,
            num_generated_tokens=self._num_resumed_tokens + self.num_generated_tokens,
            num_cached_tokens=self.num_cached_tokens,
        )

    def round_stats(self) -> generation_pb2.RoundStats:
        """How the rounds went."""
        rounds, drafted, accepted = self.num_rounds, self._num_draft_tokens, self._num_accepted_tokens
        per_token = self.seconds_per_output_token
        return generation_pb2.RoundStats(
            num_rounds=rounds,
            num_draft_tokens=drafted,
            num_accepted_tokens=accepted,
            acceptance_rate=accepted / drafted if drafted else 0.0,
            mean_acceptance_length=1 + accepted / rounds if rounds else 0.0,
            ttft_seconds=self.ttft_seconds,
            tokens_per_second=1 / per_token if per_token else 0.0,
            num_fallback_rounds=self.num_fallback_rounds,
        )

    def finished(self, finish: Finish) -> generation_pb2.Finished:
        """The last message."""
        return generation_pb2.Finished(
            finish_reason=finish.reason,
            stop_string=finish.stop_string,
            stop_token_id=finish.stop_token_id,
            usage=self.usage(),
            stats=self.round_stats(),
        )


def sum_attributes(completions: Sequence[RequestStats]) -> dict[str, AttributeValue]:
    """All completions of a request, as attributes of its span. They share one prompt."""
    first = completions[:1]
    return {
        names.INPUT_TOKENS: sum(stats.num_prompt_tokens for stats in first),
        names.CACHED_TOKENS: sum(stats.num_cached_tokens for stats in first),
        names.OUTPUT_TOKENS: sum(stats.num_generated_tokens for stats in completions),
        names.NUM_ROUNDS: sum(stats.num_rounds for stats in completions),
        names.NUM_FALLBACK_ROUNDS: sum(stats.num_fallback_rounds for stats in completions),
    }

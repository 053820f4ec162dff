"""A request from the reports of its rounds, as they come from an orchestrator."""

from __future__ import annotations

from specdec.draft_source import source_name
from specdec.v1 import draft_pb2, generation_pb2, model_pb2, target_pb2
from specdec.waterfall.parts import durations
from specdec.waterfall.printable import printable
from specdec.waterfall.request_view import RequestView
from specdec.waterfall.round_view import BONUS, PREFILL, RECOVERED, RoundView

_AHEAD_WORDS: dict[int, str] = {draft_pb2.AHEAD_OUTCOME_HIT: "hit", draft_pb2.AHEAD_OUTCOME_MISS: "miss"}
_RULE_WORDS: dict[int, str] = {
    model_pb2.ACCEPTANCE_RULE_COUPLED: "coupled",
    model_pb2.ACCEPTANCE_RULE_REJECTION: "rejection",
    model_pb2.ACCEPTANCE_RULE_BLOCK: "block",
}
_FINISH_WORDS: dict[int, str] = {
    generation_pb2.FINISH_REASON_STOP: "stop",
    generation_pb2.FINISH_REASON_LENGTH: "length",
}


class ReportedRequest:
    """Takes the responses of one completion as they come; `view` is what there is so far.

    Reports say how long a round took, not when it began: here each begins where the one before ended. Why a round went
    without drafts, and what happened to its services, only a trace says.
    """

    def __init__(self) -> None:
        self._started = generation_pb2.Started()
        self._finished: generation_pb2.Finished | None = None
        self._rounds: list[RoundView] = []
        self._num_tokens = 0
        self._end_seconds = 0.0

    def add(self, response: generation_pb2.GenerateResponse) -> None:
        """The next response of the stream. Its text is passed over."""
        if response.HasField("started"):
            self._started = response.started
        elif response.HasField("delta"):
            view = round_view(response.delta.round, self._end_seconds)
            self._rounds.append(view)
            self._end_seconds += view.wall_seconds
            self._num_tokens += len(response.delta.token_ids)
        elif response.HasField("finished"):
            self._finished = response.finished

    @property
    def view(self) -> RequestView:
        """The request so far."""
        finished, started = self._finished, self._started
        first_seconds = self._rounds[0].wall_seconds if self._rounds else None
        tpot_seconds = None
        if first_seconds is not None and self._num_tokens > 1:
            tpot_seconds = (self._end_seconds - first_seconds) / (self._num_tokens - 1)
        if finished is not None:
            stats = finished.stats
            first_seconds = stats.ttft_seconds
            tpot_seconds = 1 / stats.tokens_per_second if stats.tokens_per_second > 0 else None
        return RequestView(
            rounds=tuple(self._rounds),
            request_id=printable(started.request_id),
            model=printable(started.model_id),
            acceptance_rule=_RULE_WORDS.get(started.acceptance_rule, ""),
            status="OK" if finished is not None else "",
            finish_reason=_FINISH_WORDS.get(finished.finish_reason, "") if finished is not None else "",
            duration_seconds=self._end_seconds if self._rounds else None,
            num_prompt_tokens=started.num_prompt_tokens or None,
            num_cached_tokens=finished.usage.num_cached_tokens if finished is not None else None,
            num_generated_tokens=(
                finished.usage.num_generated_tokens if finished is not None else self._num_tokens or None
            ),
            ttft_seconds=first_seconds,
            tpot_seconds=tpot_seconds,
            num_fallback_rounds=finished.stats.num_fallback_rounds if finished is not None else None,
        )


def round_view(report: generation_pb2.RoundReport, start_seconds: float) -> RoundView:
    """A round as it was reported.

    Args:
        report: of the round.
        start_seconds: when it began, since the request did.
    """
    wall, draft_wait, verify_wait = (
        microseconds / 1e6
        for microseconds in (report.wall_microseconds, report.draft_wait_microseconds, report.verify_wait_microseconds)
    )
    draft_queue, draft_compute = _seconds(report.draft)
    target_queue, target_compute = _seconds(report.verify)
    measured = {
        "draft_queue": draft_queue,
        "draft_compute": draft_compute,
        "target_queue": target_queue,
        "target_compute": target_compute,
        "network": max(0.0, draft_wait - draft_queue - draft_compute)
        + max(0.0, verify_wait - target_queue - target_compute),
        "waiting": max(0.0, wall - draft_wait - verify_wait),
    }
    is_bonus = report.next_token_kind == target_pb2.NEXT_TOKEN_KIND_BONUS
    return RoundView(
        index=report.round,
        start_seconds=start_seconds,
        wall_seconds=wall,
        durations=durations(wall, measured),
        base_length=report.base_length,
        num_draft_tokens=report.num_draft_tokens,
        num_accepted_tokens=report.num_accepted_tokens,
        next_token_kind=PREFILL if report.round == 0 else BONUS if is_bonus else RECOVERED,
        draft_source=source_name(report.draft_source) if report.num_draft_tokens else "",
        ahead=_AHEAD_WORDS.get(report.draft_ahead, ""),
        is_candidate=report.is_candidate,
        batch_sequences=report.verify.batch_sequences,
    )


def _seconds(timings: model_pb2.Timings) -> tuple[float, float]:
    """Of the queue and of the forward passes."""
    return timings.queue_microseconds / 1e6, timings.compute_microseconds / 1e6

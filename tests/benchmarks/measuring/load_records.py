"""Requests and passes as a load leaves them behind, made by hand."""

from collections.abc import Sequence

from benchmarks.deployment.pass_log import Pass
from benchmarks.measuring.closed_loop import Delta, RequestRecord
from benchmarks.measuring.load_figures import Figures


def request(
    sent: float, deltas: Sequence[tuple[float, int]], *, is_finished: bool = True, drafted: int = 0, accepted: int = 0
) -> RequestRecord:
    """`deltas` are times and tokens; each round after the first drafted and accepted so many."""
    record = RequestRecord(prompt=0, sent=sent)
    for index, (arrived, count) in enumerate(deltas):
        record.deltas.append(Delta(arrived, count, index, drafted if index else 0, accepted if index else 0))
        record.token_ids += [7] * count
    if is_finished:
        record.finished = deltas[-1][0]
        record.num_prompt_tokens, record.num_cached_tokens = 10, 4
    return record


def a_pass(started: float, ended: float, *, sequences: int = 1, rows: int = 1, planned: float = 0.0) -> Pass:
    """A pass that computed half of its time."""
    return Pass(started, ended, (ended - started) / 2, planned, 0.0, 0.0, 0.0, sequences, rows)


def figures(
    rate: float,
    *,
    draft_tokens: float | None = None,
    target_pass: float | None = None,
    draft_pass: float | None = None,
    target_passes: int = 0,
    draft_passes: int = 0,
    busy: float | None = None,
) -> Figures:
    """What the report reads."""
    names = ("goodput_requests_per_second", "share_within_goals", "mean_acceptance_length", "target_sequences_mean")
    latencies = ("ttft_seconds_p50", "ttft_seconds_p99", "inter_token_seconds_p50", "inter_token_seconds_p99")
    return {
        **dict.fromkeys((*names, *latencies, "target_rows_mean", "draft_busy_share")),
        "tokens_per_second": rate,
        "draft_tokens_per_round": draft_tokens,
        "target_pass_seconds_mean": target_pass,
        "draft_pass_seconds_mean": draft_pass,
        "target_num_passes": target_passes,
        "draft_num_passes": draft_passes,
        "target_busy_share": busy,
    }

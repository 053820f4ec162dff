"""Made requests, and made traces of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec.telemetry import names
from specdec.waterfall.parts import Durations
from specdec.waterfall.request_view import RequestView
from specdec.waterfall.round_view import BONUS, PREFILL, RECOVERED, RoundView

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
BEGAN = 1_700_000_000_000_000_000
MILLISECOND = 1_000_000

ROUNDS = (
    RoundView(0, 0.0, 0.05, Durations({"target_compute": 0.05}), next_token_kind=PREFILL),
    RoundView(
        1,
        0.05,
        0.02,
        Durations(
            {"draft_queue": 0.002, "draft_compute": 0.004, "network": 0.002, "target_compute": 0.01, "waiting": 0.002}
        ),
        base_length=11,
        num_draft_tokens=4,
        num_accepted_tokens=4,
        next_token_kind=BONUS,
        draft_source="model",
        events=("K=4",),
    ),
    RoundView(
        2,
        0.07,
        0.01,
        Durations({"target_queue": 0.002, "target_compute": 0.008}, hidden_seconds=0.006),
        base_length=16,
        num_draft_tokens=4,
        num_accepted_tokens=1,
        next_token_kind=RECOVERED,
        draft_source="model",
        ahead="hit",
        is_candidate=True,
    ),
    RoundView(
        3,
        0.08,
        0.5,
        Durations({"network": 0.49, "target_compute": 0.01}),
        base_length=18,
        next_token_kind=BONUS,
        fallback="unavailable",
        events=("failover",),
    ),
)
REQUEST = RequestView(
    rounds=ROUNDS,
    request_id="0123456789abcdef0123456789abcdef",
    trace_id=TRACE_ID,
    model="tiny",
    acceptance_rule="coupled",
    status="OK",
    finish_reason="length",
    began_unix_seconds=BEGAN / 1e9,
    duration_seconds=0.58,
    num_prompt_tokens=11,
    num_cached_tokens=8,
    num_generated_tokens=9,
    ttft_seconds=0.05,
    tpot_seconds=0.066,
    num_fallback_rounds=1,
)


def span(
    name: names.SpanName,
    span_id: int,
    parent: int,
    start_ms: float,
    end_ms: float,
    attributes: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A span of `TRACE_ID` in OTLP JSON, as a collector writes it."""
    return {
        "traceId": TRACE_ID,
        "spanId": f"{span_id:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name.name,
        "kind": 1,
        "startTimeUnixNano": str(at(start_ms)),
        "endTimeUnixNano": str(at(end_ms)),
        "attributes": [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()],
        "status": {},
        **fields,
    }


def at(milliseconds: float) -> int:
    """A time in nanoseconds."""
    return BEGAN + round(milliseconds * MILLISECOND)


def export(spans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """An export of these spans."""
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "specdec"}, "spans": list(spans)}]}]}


def trace() -> list[dict[str, Any]]:
    """The spans of one request of a prefill and two rounds."""
    return [
        span(
            names.GENERATE,
            1,
            0,
            0,
            100,
            {
                names.MODEL: "tiny",
                names.REQUEST_ID: "0123456789abcdef0123456789abcdef",
                names.ACCEPTANCE_RULE: "coupled",
                names.STATUS_CODE: "OK",
                names.FINISH_REASONS: ["length"],
                names.INPUT_TOKENS: 11,
                names.CACHED_TOKENS: 0,
                names.OUTPUT_TOKENS: 7,
                names.NUM_FALLBACK_ROUNDS: 1,
            },
            events=[
                {
                    "name": names.K_EVENT,
                    "timeUnixNano": str(at(41)),
                    "attributes": [{"key": names.ROUND_NUM_DRAFT_TOKENS, "value": {"intValue": "4"}}],
                }
            ],
        ),
        span(names.PREFILL, 2, 1, 1, 40),
        span(names.TARGET_WINDOW, 3, 2, 5, 35, {names.QUEUE_SECONDS: 0.002, names.COMPUTE_SECONDS: 0.030}),
        span(
            names.ROUND,
            4,
            1,
            40,
            70,
            {
                names.ROUND_INDEX: 1,
                names.ROUND_BASE_LENGTH: 12,
                names.ROUND_NUM_DRAFT_TOKENS: 4,
                names.ROUND_NUM_ACCEPTED_TOKENS: 4,
                names.ROUND_NEXT_TOKEN_KIND: "bonus",
                names.DRAFT_SOURCE: "model",
                names.AHEAD_OUTCOME: "miss",
                names.ROUND_DRAFT_QUEUE_SECONDS: 0.001,
                names.ROUND_DRAFT_COMPUTE_SECONDS: 0.009,
                names.ROUND_TARGET_QUEUE_SECONDS: 0.0,
                names.ROUND_TARGET_COMPUTE_SECONDS: 0.015,
                names.ROUND_NETWORK_SECONDS: 0.004,
                names.ROUND_WAITING_SECONDS: 0.001,
            },
        ),
        span(names.VERIFY, 5, 4, 50, 70, {names.ROUND_NUM_DRAFT_TOKENS: 4}),
        span(names.TARGET_WINDOW, 6, 5, 52, 68, {names.FORWARD_SEQUENCES: 3}),
        span(
            names.ROUND,
            7,
            1,
            70,
            100,
            {
                names.ROUND_INDEX: 2,
                names.ROUND_BASE_LENGTH: 17,
                names.ROUND_NUM_DRAFT_TOKENS: 0,
                names.ROUND_NUM_ACCEPTED_TOKENS: 0,
                names.ROUND_NEXT_TOKEN_KIND: "bonus",
                names.ROUND_FALLBACK: "unavailable",
                names.ROUND_TARGET_COMPUTE_SECONDS: 0.010,
                names.ROUND_NETWORK_SECONDS: 0.020,
            },
        ),
        span(
            names.VERIFY,
            8,
            7,
            70,
            100,
            events=[{"name": names.FAILOVER_EVENT, "timeUnixNano": str(at(80)), "attributes": []}],
        ),
    ]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(entry) for entry in value]}}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}

import base64
from typing import Any

import pytest

from specdec.telemetry import names
from specdec.waterfall.spans import MalformedSpansError, spans_of
from tests.specdec.waterfall.made import TRACE_ID, export, span, trace

WANTED = frozenset({"round", "generate"})


def read(document: object) -> list[Any]:
    return list(spans_of(document, WANTED))


def test_a_span_as_a_collector_writes_it() -> None:
    (generate, *_) = read(export(trace()))
    assert (generate.trace_id, generate.span_id, generate.parent_span_id) == (TRACE_ID, f"{1:016x}", "")
    assert generate.seconds == 0.1
    assert generate.text(names.FINISH_REASONS) == "length"
    assert generate.count(names.OUTPUT_TOKENS) == 7
    assert generate.text(names.SEED) == ""
    assert generate.number(names.MODEL) is None
    assert [(event.name, event.attributes) for event in generate.events] == [
        (names.K_EVENT, {names.ROUND_NUM_DRAFT_TOKENS: 4})
    ]


def test_other_spans_are_passed_over_unread() -> None:
    assert read(export([{"name": "GET /", "traceId": 5}])) == []


def test_metrics_and_logs_hold_no_spans() -> None:
    assert read({"resourceMetrics": [{"scopeMetrics": []}]}) == []
    assert read({"resourceLogs": []}) == []


def test_times_and_counts_may_be_numbers_and_ids_base64_or_upper_case() -> None:
    made = span(names.ROUND, 1, 2, 0, 5, {names.ROUND_INDEX: 3})
    expected = read(export([made]))
    made["startTimeUnixNano"], made["endTimeUnixNano"] = int(made["startTimeUnixNano"]), int(made["endTimeUnixNano"])
    made["attributes"][0]["value"] = {"intValue": 3}
    made["traceId"] = base64.b64encode(bytes.fromhex(TRACE_ID)).decode()
    made["spanId"] = made["spanId"].upper()
    assert read(export([made])) == expected


def test_the_names_of_the_proto_will_do_too() -> None:
    made = span(names.ROUND, 1, 2, 0, 5, {names.ROUND_NEXT_TOKEN_KIND: "bonus"})
    expected = read(export([made]))
    for name, other in (("traceId", "trace_id"), ("spanId", "span_id"), ("parentSpanId", "parent_span_id")):
        made[other] = made.pop(name)
    made["start_time_unix_nano"] = made.pop("startTimeUnixNano")
    made["end_time_unix_nano"] = made.pop("endTimeUnixNano")
    made["attributes"][0]["value"] = {"string_value": "bonus"}
    assert read({"resource_spans": [{"scope_spans": [{"spans": [made]}]}]}) == expected


def test_a_failed_span() -> None:
    for code in (2, "STATUS_CODE_ERROR"):
        (read_span,) = read(export([span(names.ROUND, 1, 2, 0, 5, status={"code": code})]))
        assert read_span.is_error


def test_what_would_move_a_cursor_is_taken_out() -> None:
    (read_span,) = read(export([span(names.ROUND, 1, 2, 0, 5, {names.DRAFT_SOURCE: "\x1b[2Jmodel\n" + 500 * "x"})]))
    assert "\x1b" not in read_span.text(names.DRAFT_SOURCE)
    assert "\n" not in read_span.text(names.DRAFT_SOURCE)
    assert len(read_span.text(names.DRAFT_SOURCE)) <= 200


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("traceId", "abc", "traceId is not 16 bytes in hex"),
        ("traceId", None, "traceId is not 16 bytes"),
        ("spanId", 7, "spanId is not 8 bytes"),
        ("startTimeUnixNano", "noon", "startTimeUnixNano is not a time"),
        ("startTimeUnixNano", True, "startTimeUnixNano is not a time"),
        ("endTimeUnixNano", "-5", "endTimeUnixNano is not a time"),
        ("endTimeUnixNano", "9" * 5000, "endTimeUnixNano is not a time"),
        ("endTimeUnixNano", 1e300, "endTimeUnixNano is not a time"),
        ("attributes", "x", "attributes is not a list"),
        ("attributes", [1], "an entry of attributes is not a JSON object"),
        ("events", {}, "events is not a list"),
    ],
)
def test_malformed_spans(field: str, value: object, complaint: str) -> None:
    made = {**span(names.ROUND, 1, 2, 0, 5), field: value}
    with pytest.raises(MalformedSpansError, match=complaint):
        read(export([made]))


@pytest.mark.parametrize("document", [5, "x", {"resourceSpans": 5}, {"resourceSpans": [{"scopeSpans": [5]}]}])
def test_other_documents(document: object) -> None:
    with pytest.raises(MalformedSpansError):
        read(document)


@pytest.mark.parametrize(
    "value", [None, 5, {}, {"intValue": "x"}, {"doubleValue": float("inf")}, {"bytesValue": "AAAA"}, {"arrayValue": 3}]
)
def test_attributes_of_other_kinds_are_left_out(value: object) -> None:
    made = {**span(names.ROUND, 1, 2, 0, 5), "attributes": [{"key": "k", "value": value}]}
    (read_span,) = read(export([made]))
    assert read_span.attributes == {}

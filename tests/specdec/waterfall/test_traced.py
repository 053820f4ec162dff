from typing import Any

import pytest

from specdec.telemetry import names
from specdec.waterfall.request_view import RequestView
from specdec.waterfall.span_file import WANTED
from specdec.waterfall.spans import spans_of
from specdec.waterfall.traced import traced_requests
from tests.specdec.waterfall.made import at, export, span, trace


def requests(spans: list[dict[str, Any]]) -> list[RequestView]:
    return traced_requests(spans_of(export(spans), WANTED))


def test_a_request_and_its_rounds() -> None:
    (request,) = requests(trace())
    assert (request.model, request.status, request.finish_reason) == ("tiny", "OK", "length")
    assert (request.num_prompt_tokens, request.num_generated_tokens, request.num_fallback_rounds) == (11, 7, 1)
    assert request.ttft_seconds == pytest.approx(0.040)
    assert request.tpot_seconds == pytest.approx(0.060 / 6)
    prefill, first, second = request.rounds
    assert (prefill.index, prefill.next_token_kind) == (0, "prefill")
    assert prefill.start_seconds == pytest.approx(0.001)
    assert prefill.durations.parts == {
        "target_queue": 0.002,
        "target_compute": 0.030,
        "network": pytest.approx(0.007),
    }
    assert (first.index, first.num_draft_tokens, first.num_accepted_tokens) == (1, 4, 4)
    assert (first.next_token_kind, first.draft_source, first.ahead, first.batch_sequences) == (
        "bonus",
        "model",
        "miss",
        3,
    )
    assert first.durations.parts == {
        "draft_queue": 0.001,
        "draft_compute": 0.009,
        "network": 0.004,
        "target_compute": 0.015,
        "waiting": pytest.approx(0.001),
    }
    assert first.notes == ("ahead missed", "K=4")
    assert second.notes == ("no draft: unavailable", "failover")
    assert request.acceptance_rate == 1
    assert request.mean_acceptance_length == 3


def test_spans_in_any_order_and_twice() -> None:
    assert requests([*reversed(trace()), *trace()]) == requests(trace())


def test_a_prefill_without_the_targets_spans_is_not_split() -> None:
    (request,) = requests([each for each in trace() if each["name"] != "target.window"])
    assert request.rounds[0].durations.parts == {"unknown": pytest.approx(0.039)}


def test_a_round_that_was_given_up() -> None:
    given_up = span(
        names.ROUND, 9, 1, 100, 130, {names.ERROR_TYPE: "cancelled"}, status={"code": 2, "message": "cancelled"}
    )
    (request,) = requests([*trace(), given_up])
    last = request.rounds[-1]
    assert (last.index, last.next_token_kind, last.notes) == (3, "", ("failed: cancelled",))
    assert last.durations.parts == {"unknown": pytest.approx(0.03)}
    # It committed nothing, so it counts for nothing.
    assert request.tpot_seconds == pytest.approx(0.060 / 6)
    assert request.num_rounds == 2
    assert request.mean_acceptance_length == 3


def test_a_request_that_was_refused_has_no_rounds() -> None:
    refused = span(names.GENERATE, 1, 0, 0, 1, {names.STATUS_CODE: "RESOURCE_EXHAUSTED"}, status={"code": 2})
    (request,) = requests([refused])
    assert (request.status, request.rounds, request.ttft_seconds) == ("RESOURCE_EXHAUSTED", (), None)
    assert request.acceptance_rate is None
    assert request.mean_acceptance_length is None
    assert request.scale_seconds > 0


def test_several_requests_are_kept_apart_and_in_order() -> None:
    later = [{**each, "traceId": "f" * 32} for each in trace()]
    for each in later:
        for name in ("startTimeUnixNano", "endTimeUnixNano"):
            each[name] = str(int(each[name]) + at(5_000) - at(0))
    first, second = requests([*later, *trace()])
    assert (first.trace_id, second.trace_id) == (trace()[0]["traceId"], "f" * 32)
    assert len(first.rounds) == len(second.rounds) == 3


def test_rounds_without_their_request_are_not_drawn() -> None:
    assert requests(trace()[1:]) == []


def test_several_completions_are_told() -> None:
    (request,) = requests([*trace(), span(names.PREFILL, 20, 1, 2, 41)])
    assert request.num_prefills == 2
    assert request.tpot_seconds is None


def test_a_resync_is_told() -> None:
    spans = trace()
    spans[-1]["events"][0]["name"] = names.RESYNC_EVENT
    (request,) = requests(spans)
    assert "resync" in request.rounds[-1].events

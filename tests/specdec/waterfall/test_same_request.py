"""A trace and the reports of the same request are drawn alike."""

from __future__ import annotations

import pytest

from specdec.waterfall.reported import ReportedRequest
from specdec.waterfall.span_file import WANTED
from specdec.waterfall.spans import spans_of
from specdec.waterfall.traced import traced_requests
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import request, running
from tests.orchestrator.table import half_right
from tests.recorded_spans import recorded_spans
from tests.specdec.waterfall.exported import exported

ALIKE = (
    "index",
    "base_length",
    "num_draft_tokens",
    "num_accepted_tokens",
    "next_token_kind",
    "draft_source",
    "ahead",
    "is_candidate",
)


async def test_a_trace_and_the_reports_of_one_request() -> None:
    reported = ReportedRequest()
    async with running(FakeTarget(), FakeDraft(half_right)) as run:
        with recorded_spans() as spans:
            async for response in run.stub.Generate(request(), timeout=30):
                reported.add(response)
            export = exported(spans.get_finished_spans())
    (traced,) = traced_requests(spans_of(export, WANTED))
    told = reported.view
    assert len(traced.rounds) == len(told.rounds) > 3
    # Of the prefill only the trace of the target would say how long its prefix is.
    for one, other in zip(traced.rounds[1:], told.rounds[1:], strict=True):
        assert [getattr(one, name) for name in ALIKE] == [getattr(other, name) for name in ALIKE]
        assert one.wall_seconds == pytest.approx(other.wall_seconds, abs=0.02)
        for part, seconds in other.durations.parts.items():
            # The span is open a little longer than the round takes.
            if part != "waiting":
                assert one.durations.parts.get(part, 0.0) == pytest.approx(seconds, abs=0.001)
    for name in ("request_id", "model", "acceptance_rule", "status", "finish_reason", "num_prompt_tokens"):
        assert getattr(traced, name) == getattr(told, name)
    assert traced.num_generated_tokens == told.num_generated_tokens == 24
    assert traced.mean_acceptance_length == told.mean_acceptance_length
    assert traced.acceptance_rate == told.acceptance_rate
    assert "K=4" in traced.rounds[1].events


async def test_a_sequence_that_is_opened_again_is_noted() -> None:
    target = FakeTarget()
    target.delay_seconds = 0.01
    async with running(target, FakeDraft(half_right)) as run:
        with recorded_spans() as spans:
            async for response in run.stub.Generate(request(), timeout=30):
                if response.delta.round.round == 2:
                    target.break_streams()
            export = exported(spans.get_finished_spans())
    (traced,) = traced_requests(spans_of(export, WANTED))
    assert [each.index for each in traced.rounds if "resync" in each.events] != []
    assert traced.num_generated_tokens == 24

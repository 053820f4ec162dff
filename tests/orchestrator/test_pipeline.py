"""Whether drafting ahead is asked for, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from orchestrator.pipeline import Pipeline, PipelineMode
from specdec.v1 import draft_pb2, model_pb2
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import running

HIT = draft_pb2.AHEAD_OUTCOME_HIT


def proposal(
    draft_ms: float, queue_ms: float = 0.0, ahead: draft_pb2.AheadOutcome.ValueType = draft_pb2.AHEAD_OUTCOME_MISS
) -> draft_pb2.Proposal:
    timings = model_pb2.Timings(compute_microseconds=round(draft_ms * 1e3), queue_microseconds=round(queue_ms * 1e3))
    return draft_pb2.Proposal(token_ids=[1, 2], timings=timings, ahead=ahead)


def auto(draft_ms: float, queue_ms: float, round_ms: float) -> Pipeline:
    pipeline = Pipeline("auto")
    for _ in range(20):
        pipeline.observe(proposal(draft_ms, queue_ms), round_ms / 1e3)
    return pipeline


@pytest.mark.parametrize(
    ("draft_ms", "queue_ms", "round_ms", "expected"),
    [(12, 0, 42, True), (0.1, 0, 42, False), (12, 10, 42, False), (12, 1, 100, True), (12, 0, 400, False)],
)
def test_auto_goes_by_what_drafting_takes_of_a_round(
    draft_ms: float, queue_ms: float, round_ms: float, expected: bool
) -> None:
    assert auto(draft_ms, queue_ms, round_ms).drafts_ahead() is expected


def test_auto_begins_without() -> None:
    assert not Pipeline("auto").drafts_ahead()


def test_hits_do_not_make_drafting_look_cheap() -> None:
    pipeline = auto(12, 0, 42)
    for _ in range(200):
        pipeline.observe(proposal(0.0, ahead=HIT), 0.03)
    assert pipeline.drafts_ahead()


@pytest.mark.parametrize(("mode", "expected"), [("off", False), ("ahead", True)])
def test_the_draft_service_is_told(mode: PipelineMode, expected: bool) -> None:
    pipeline = Pipeline(mode)
    for _ in range(3):
        assert pipeline.drafts_ahead() is expected
        pipeline.observe(proposal(12), 0.04)


@pytest.mark.parametrize(("mode", "expected"), [("off", {False}), ("ahead", {True})])
async def test_commits_say_so_and_reports_say_what_came_of_it(mode: str, expected: set[bool]) -> None:
    draft = FakeDraft()

    def hit(command: draft_pb2.DraftCommand, event: draft_pb2.DraftEvent) -> Iterable[draft_pb2.DraftEvent]:
        if command.commit.draft_ahead:
            event.proposal.ahead = HIT
        return [event]

    draft.change = hit
    async with running(FakeTarget(), draft, pipeline=mode) as run:
        result = await run.generate()
    asked = [command.commit for command in draft.commands if command.commit.num_draft_tokens]
    assert {commit.draft_ahead for commit in asked} == expected
    assert {report.draft_ahead == HIT for report in result.rounds if report.num_draft_tokens} == expected

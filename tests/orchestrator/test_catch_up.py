"""A draft model that has much to run first is not waited for: the target goes on alone, until drafts can be had."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from orchestrator import catch_up
from orchestrator.catch_up import CatchUp
from orchestrator.window_size import FixedWindowSize
from orchestrator.window_sizes import WindowSizes
from specdec.errors import ResourceExhaustedError
from specdec.telemetry import names
from specdec.v1 import draft_pb2, model_pb2, target_pb2
from tests.orchestrator.fakes import Context, FakeDraft, FakeTarget
from tests.orchestrator.running import request, running
from tests.orchestrator.serving import until
from tests.orchestrator.table import plain_continuation, table_token
from tests.orchestrator.test_candidates import GoingOnTarget, num_candidate_rounds, telling
from tests.orchestrator.test_features import OF_DRAFT, GivingTarget, commits, features_at

LONG = [2 + index % 300 for index in range(50)]
NUM_TOKENS = 60
ASKED = request(LONG, max_new_tokens=NUM_TOKENS)
EXPECTED = plain_continuation(LONG, NUM_TOKENS)


class PrefillingDraft(FakeDraft):
    """Holds its answers back, and carries nothing further out, until it is ready; it receives commands all the same."""

    def __init__(self, **facts: Any) -> None:
        super().__init__(table_token, **facts)
        self.is_ready = asyncio.Event()

    async def Propose(  # noqa: N802
        self, request_iterator: AsyncIterator[draft_pb2.ProposeRequest], context: Context
    ) -> AsyncIterator[draft_pb2.ProposeResponse]:
        broken = self._broken
        async for events in self.stream(request_iterator, draft_pb2.DraftEvent):
            waits = [asyncio.create_task(event.wait()) for event in (self.is_ready, broken)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if broken.is_set():
                return
            yield draft_pb2.ProposeResponse(events=events)


def at_window(target: FakeTarget, number: int, do: Callable[[], object]) -> None:
    """Do something before a verdict."""
    before, seen = target.change, 0

    def change(command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        nonlocal seen
        seen += command.HasField("window")
        if seen == number and command.HasField("window"):
            do()
        return before(command, event)

    target.change = change


def window_sizes(target: FakeTarget) -> list[int]:
    return [len(command.window.token_ids) for command in target.commands if command.HasField("window")]


@pytest.mark.parametrize("reads_features", [False, True])
async def test_the_target_goes_on_and_drafts_are_used_once_they_are_ready(
    monkeypatch: pytest.MonkeyPatch, reads_features: bool
) -> None:
    target = GivingTarget() if reads_features else FakeTarget()
    draft = PrefillingDraft(**OF_DRAFT if reads_features else {})
    num_received: list[int] = []

    def get_ready() -> None:
        num_received.append(len(draft.commands))
        draft.is_ready.set()

    at_window(target, 12, get_ready)
    num_chosen = 0

    def choose(size: FixedWindowSize) -> WindowSizes:
        nonlocal num_chosen
        num_chosen += 1
        return WindowSizes(size.num_draft_tokens, size.num_draft_tokens)

    monkeypatch.setattr(FixedWindowSize, "choose", choose)
    async with running(target, draft) as run:
        result = await run.generate(ASKED)
        causes = run.counting.by_attribute(names.FALLBACKS)
    assert result.token_ids == EXPECTED
    sizes = window_sizes(target)
    num_plain = sum(size == 0 for size in sizes[:-1])
    assert 12 <= num_plain <= 14, "one may be under way when the proposal comes"
    assert sizes[num_plain : num_plain + 8] == [4] * 8
    assert causes == {"prefill": num_plain}
    assert result.finished is not None
    assert result.finished.stats.num_fallback_rounds == 0
    # An open and a commit; what was held follows in order, and only the last one of it asks.
    assert num_received == [2]
    sent = commits(draft)
    assert [bool(commit.num_draft_tokens) for commit in sent[: num_plain + 1]] == [
        True,
        *[False] * (num_plain - 1),
        True,
    ]
    assert [commit.round for commit in sent] == list(range(1, len(sent) + 1))
    assert num_chosen == len(sent) - (num_plain - 1), "K is chosen where it counts"
    if reads_features:
        assert all(commit.features == features_at(commit.committed_length) for commit in sent)
    assert not draft.refusals
    assert not target.refusals


async def test_a_short_prompt_is_waited_for() -> None:
    target, draft = FakeTarget(), PrefillingDraft()
    async with running(target, draft) as run:
        generating = asyncio.create_task(run.generate())
        await until(lambda: len(draft.commands) > 1)
        await asyncio.sleep(0.05)
        assert not window_sizes(target)
        draft.is_ready.set()
        await generating
        assert run.counting.by_attribute(names.FALLBACKS) == {}


async def test_a_proposal_that_comes_soon_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "_LEAST_SECONDS", 1.0)
    draft = PrefillingDraft()
    draft.is_ready.set()
    async with running(FakeTarget(), draft) as run:
        result = await run.generate(ASKED)
        assert run.counting.by_attribute(names.FALLBACKS) == {}
    assert result.rounds[1].num_draft_tokens == 4


async def test_a_proposal_that_never_comes_is_overdue() -> None:
    target, draft = FakeTarget(), PrefillingDraft()
    target.delay_seconds = 0.01
    async with running(target, draft, draft_timeout_seconds=0.1) as run:
        result = await run.generate(ASKED)
        causes = run.counting.by_attribute(names.FALLBACKS)
    assert result.token_ids == EXPECTED
    assert set(causes) == {"prefill", "overdue"}
    assert result.finished is not None
    assert result.finished.stats.num_fallback_rounds == causes["overdue"]


async def test_a_link_that_is_lost_meanwhile(short_pauses: None) -> None:
    target, draft = FakeTarget(), PrefillingDraft()
    target.delay_seconds = 0.01
    at_window(target, 5, draft.break_streams)
    asked = request(LONG, max_new_tokens=300)
    async with running(target, draft) as run:
        generating = asyncio.create_task(run.generate(asked))
        # Opened again, it has more to run than ever.
        await until(lambda: sum(command.HasField("open") for command in draft.commands) == 2)
        num_windows = len(window_sizes(target))
        await until(lambda: len(window_sizes(target)) > num_windows + 5)
        draft.is_ready.set()
        result = await generating
        causes = run.counting.by_attribute(names.FALLBACKS)
        assert run.counting.by_attribute(names.RESYNCS) == {"draft": 1}
    assert result.token_ids == plain_continuation(LONG, 300)
    assert causes["lost"] >= 1
    assert causes["prefill"] >= 10
    assert sum(report.num_accepted_tokens for report in result.rounds[-4:]) > 0
    assert not draft.refusals


async def test_a_sequence_that_is_refused_meanwhile() -> None:
    target, draft = FakeTarget(), PrefillingDraft()

    def refuse(_: draft_pb2.DraftCommand, event: draft_pb2.DraftEvent) -> Iterable[draft_pb2.DraftEvent]:
        event.failed.CopyFrom(ResourceExhaustedError("full").to_status())
        return [event]

    draft.change = refuse
    at_window(target, 5, draft.is_ready.set)
    async with running(target, draft) as run:
        result = await run.generate(ASKED)
        assert set(run.counting.by_attribute(names.FALLBACKS)) == {"prefill", "refused"}
    assert result.token_ids == EXPECTED


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_request_that_ends_meanwhile_leaves_nothing_behind(is_cancelled: bool) -> None:
    target, draft = FakeTarget(), PrefillingDraft()
    target.delay_seconds = 0.01 if is_cancelled else 0.0
    async with running(target, draft) as run:
        if is_cancelled:
            call = run.stub.Generate(request(LONG, max_new_tokens=400))
            await until(lambda: len(window_sizes(target)) > 3)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call.read()
        else:
            assert (await run.generate(request(LONG, max_new_tokens=9))).token_ids == EXPECTED[:9]
        await until(lambda: not target.sequences)
        await until(lambda: draft.commands[-1].HasField("close"))
        assert run.service.drafts is not None
        assert run.service.drafts.num_sequences == 0


@pytest.mark.parametrize("pipeline", ["ahead", "candidates"])
async def test_continuations_of_a_late_proposal_are_not_used(pipeline: str) -> None:
    target, draft = GoingOnTarget(), PrefillingDraft()
    draft.change = telling(draft)
    at_window(target, 8, draft.is_ready.set)
    async with running(target, draft, pipeline=pipeline) as run:
        result = await run.generate(ASKED)
        assert run.counting.by_attribute(names.RESYNCS) == {}
    assert result.token_ids == EXPECTED
    assert not any(report.is_candidate for report in result.rounds[:9])
    assert (num_candidate_rounds(result) > 3) == (pipeline == "candidates")
    assert not draft.refusals
    assert not target.refusals


async def test_a_target_that_is_opened_again_meanwhile(short_pauses: None) -> None:
    target, draft = GivingTarget(), PrefillingDraft(**OF_DRAFT)
    at_window(target, 5, target.break_streams)
    at_window(target, 9, draft.is_ready.set)
    async with running(target, draft) as run:
        result = await run.generate(ASKED)
        assert run.counting.by_attribute(names.RESYNCS) == {"target": 1}
    assert result.token_ids == EXPECTED
    assert sum(report.num_accepted_tokens for report in result.rounds[-4:]) > 0
    assert not draft.refusals


def timings(seconds: float) -> model_pb2.Timings:
    return model_pb2.Timings(queue_microseconds=1000, compute_microseconds=round(1e6 * seconds) - 1000)


def test_a_model_is_waited_for_as_long_as_a_plain_round_takes_unless_that_is_in_vain() -> None:
    of_all = CatchUp(lambda: 0.05)
    assert of_all.patience_seconds(17) == math.inf
    assert of_all.patience_seconds(700) == 0.05
    of_all.observe(700, timings(0.7))
    assert of_all.patience_seconds(700) == 0.0
    assert of_all.patience_seconds(60) == 0.0
    assert of_all.patience_seconds(45) == 0.05
    assert of_all.patience_seconds(17) == math.inf
    for _ in range(30):
        of_all.observe(700, timings(0.035))
    assert of_all.patience_seconds(700) == 0.05


def test_before_any_time_was_measured_it_is_waited_for_a_moment() -> None:
    assert 0 < CatchUp().patience_seconds(700) <= 0.02


@pytest.mark.parametrize("has_model", [True, False])
async def test_lookup_beside_a_model_that_works_for_others_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, has_model: bool
) -> None:
    """Without a model nobody else's work can be in between, so it is."""
    target = FakeTarget()
    draft = PrefillingDraft(dtype="float32" if has_model else "")
    monkeypatch.setattr(FixedWindowSize, "choose", lambda _: WindowSizes(0, 4))
    short = request(LONG[:8], max_new_tokens=24)
    if has_model:
        at_window(target, 12, draft.is_ready.set)
    async with running(target, draft) as run:
        generating = asyncio.create_task(run.generate(short))
        if not has_model:
            await until(lambda: bool(commits(draft)))
            draft.is_ready.set()
        result = await generating
        causes = run.counting.by_attribute(names.FALLBACKS)
    assert result.token_ids == plain_continuation(LONG[:8], 24)
    assert (12 <= causes.get("prefill", 0) <= 14) if has_model else causes == {}

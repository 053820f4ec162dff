"""B43: the draft service is absent, dies, hangs, is wrong, or has nothing to say; the text is the same."""

import asyncio
from collections.abc import Callable, Iterable

import pytest

from orchestrator import rest
from specdec.errors import InvalidArgumentError, ResourceExhaustedError
from specdec.telemetry import names
from specdec.v1 import draft_pb2, model_pb2, target_pb2
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import NOWHERE, PROMPT, Running, request, running
from tests.orchestrator.serving import until
from tests.orchestrator.table import plain_continuation, table_token

EXPECTED = plain_continuation(PROMPT, 24)


async def fallback_causes(run: Running) -> dict[str, float]:
    result = await run.generate()
    assert result.token_ids == EXPECTED
    assert result.finished is not None
    causes = run.counting.by_attribute(names.FALLBACKS)
    assert result.finished.stats.num_fallback_rounds == sum(causes.values()) - causes.get("empty", 0)
    return causes


async def test_no_draft_service() -> None:
    async with running(FakeTarget(), NOWHERE) as run:
        assert set(await fallback_causes(run)) == {"unavailable"}
        assert run.counting.by_attribute(names.DRAFT_AVAILABLE) == {"": 0}


async def test_a_drafter_of_another_vocabulary_is_not_used() -> None:
    draft = FakeDraft(tokenizer_hash="abcd")
    async with running(FakeTarget(), draft) as run:
        assert set(await fallback_causes(run)) == {"mismatch"}
        assert run.counting.by_attribute(names.DRAFT_AVAILABLE) == {"": 0}
    assert not draft.commands


async def test_a_drafter_that_cannot_draft_for_the_rule_is_not_used() -> None:
    draft = FakeDraft(acceptance_rules=[model_pb2.ACCEPTANCE_RULE_BLOCK])
    async with running(FakeTarget(), draft) as run:
        assert set(await fallback_causes(run)) == {"mismatch"}
    assert not draft.commands


async def test_a_draft_service_that_hangs_costs_one_timeout_and_then_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "_FIRST_PAUSE_SECONDS", 0.01)
    target, draft = FakeTarget(), FakeDraft()
    draft.is_frozen = True
    # The request takes some 0.5 s; the rest after 0.1 s lost is 1.6 s.
    target.delay_seconds = 0.02
    async with running(target, draft, draft_timeout_seconds=0.1) as run:
        assert set(await fallback_causes(run)) == {"overdue"}
        assert len([command for command in draft.commands if command.HasField("open")]) == 1


def answering_with(
    change: Callable[[draft_pb2.Proposal], None],
) -> Callable[[draft_pb2.DraftCommand, draft_pb2.DraftEvent], Iterable[draft_pb2.DraftEvent]]:
    def changed(_: draft_pb2.DraftCommand, event: draft_pb2.DraftEvent) -> Iterable[draft_pb2.DraftEvent]:
        change(event.proposal)
        return [event]

    return changed


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda proposal: proposal.ClearField("token_ids"), "empty"),
        (lambda proposal: proposal.token_ids.extend([7] * 9), "invalid"),
        (lambda proposal: proposal.token_ids.__setitem__(0, 320), "invalid"),
        (lambda proposal: setattr(proposal, "base_length", 3), "invalid"),
        (lambda proposal: proposal.parents.extend([-1, 5]), "invalid"),
        (lambda proposal: proposal.parents.extend([0] * len(proposal.token_ids)), "invalid"),
        (lambda proposal: proposal.distributions.add(), "invalid"),
    ],
)
async def test_bad_proposals(change: Callable[[draft_pb2.Proposal], None], cause: str, short_pauses: None) -> None:
    target, draft = FakeTarget(), FakeDraft(table_token)
    draft.change = answering_with(change)
    async with running(target, draft) as run:
        assert set(await fallback_causes(run)) == {cause}
    assert not target.refusals


async def test_a_draft_service_that_refuses(short_pauses: None) -> None:
    target, draft = FakeTarget(), FakeDraft()

    def refuse(_: draft_pb2.DraftCommand, event: draft_pb2.DraftEvent) -> Iterable[draft_pb2.DraftEvent]:
        event.failed.CopyFrom(ResourceExhaustedError("full").to_status())
        return [event]

    draft.change = refuse
    async with running(target, draft) as run:
        assert set(await fallback_causes(run)) == {"refused"}
        draft.change = lambda _, event: [event]
        result = await run.generate()
        assert result.finished is not None
        assert result.finished.stats.num_fallback_rounds == 0
    assert not target.refusals


async def test_a_window_that_the_target_calls_malformed_is_the_drafters_fault(short_pauses: None) -> None:
    target, draft = FakeTarget(), FakeDraft(table_token)

    def refuse_windows(
        command: target_pb2.TargetCommand, event: target_pb2.TargetEvent
    ) -> Iterable[target_pb2.TargetEvent]:
        if command.window.token_ids:
            target.sequences.pop(command.sequence_id)
            event.failed.CopyFrom(InvalidArgumentError("a token of probability 0").to_status())
        return [event]

    target.change = refuse_windows
    async with running(target, draft) as run:
        result = await run.generate()
        assert result.token_ids == EXPECTED
        assert set(run.counting.by_attribute(names.FALLBACKS)) == {"window_refused"}
        assert run.counting.by_attribute(names.RESYNCS)["target"] > 0


async def test_the_draft_service_dies_in_mid_generation_and_comes_back(short_pauses: None) -> None:
    target, draft = FakeTarget(), FakeDraft(table_token)
    target.delay_seconds = 0.01
    async with running(target, draft) as run:
        generating = asyncio.create_task(run.generate(request(max_new_tokens=400)))
        await until(lambda: len(draft.commands) > 5)
        draft.break_streams()
        result = await generating
    assert result.token_ids == plain_continuation(PROMPT, 400)
    causes = run.counting.by_attribute(names.FALLBACKS)
    assert causes["lost"] >= 1
    assert run.counting.by_attribute(names.RESYNCS) == {"draft": 1}
    # It was at work again at the end.
    assert sum(report.num_accepted_tokens for report in result.rounds[-4:]) > 0
    assert not target.refusals
    assert not draft.refusals

"""The decode loop, seen from a client: the text is the target's own, whatever the services do."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import pytest

from orchestrator import drafter as drafter_module
from orchestrator import verifier as verifier_module
from specdec.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from specdec.telemetry import names
from specdec.v1 import draft_pb2, model_pb2, target_pb2
from tests.orchestrator.fakes import (
    FakeDraft,
    FakeTarget,
    half_right,
    plain_continuation,
    serving,
    table_token,
    until,
)
from tests.orchestrator.running import NOWHERE, PROMPT, Running, request, running

EXPECTED = plain_continuation(PROMPT, 24)


def never_right(prefix: Sequence[int]) -> int:
    return 2 + (table_token(prefix) - 1) % 318


def assert_in_step(target: FakeTarget, draft: FakeDraft | None = None) -> None:
    """Every command fitted what the service knew."""
    assert not target.refusals
    assert draft is None or not draft.refusals


@pytest.mark.parametrize("guess", [table_token, half_right, never_right])
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 5, 8, None])
async def test_the_text_is_the_targets_for_every_k_and_drafter(
    guess: Callable[[Sequence[int]], int], num_draft_tokens: int | None
) -> None:
    target, draft = FakeTarget(), FakeDraft(guess)
    async with running(target, draft) as run:
        result = await run.generate(request(num_draft_tokens=num_draft_tokens))
        assert result.token_ids == EXPECTED
        assert result.finished is not None
        stats = result.finished.stats
        assert stats.num_fallback_rounds == 0
        assert stats.num_rounds == len(result.rounds) - 1
        if guess is table_token and num_draft_tokens == 5:
            # B26: with a perfect drafter everything drafted is accepted: 1 + 6 + 6 + 6 + 5 tokens.
            assert (stats.num_rounds, stats.num_draft_tokens, stats.acceptance_rate) == (4, 19, 1.0)
        if guess is never_right or num_draft_tokens == 0:
            assert stats.num_accepted_tokens == 0
            assert stats.num_rounds == 23
        await until(lambda: not target.sequences and not draft.sequences)
    assert_in_step(target, draft)
    assert bool(draft.commands) == (num_draft_tokens != 0)


@pytest.mark.parametrize("prompt", [[40], PROMPT])
async def test_the_first_draft_token_is_judged_too(prompt: list[int]) -> None:
    """B03."""
    async with running(FakeTarget(), FakeDraft(never_right)) as run:
        result = await run.generate(request(prompt, num_draft_tokens=1))
    assert result.token_ids == plain_continuation(prompt, 24)
    assert sum(report.num_accepted_tokens for report in result.rounds) == 0
    assert all(report.next_token_kind == target_pb2.NEXT_TOKEN_KIND_RECOVERED for report in result.rounds[1:-1])


async def test_what_the_target_did_not_judge_is_not_committed() -> None:
    """B06: the target judges fewer than were sent."""
    target, draft = FakeTarget(), FakeDraft(table_token)
    target.max_judged_tokens = 3
    async with running(target, draft) as run:
        result = await run.generate(request(num_draft_tokens=7))
    assert result.token_ids == EXPECTED
    assert {report.num_accepted_tokens for report in result.rounds[1:-1]} == {3}
    assert_in_step(target, draft)


async def test_windows_never_reach_past_the_limit() -> None:
    target, draft = FakeTarget(), FakeDraft(table_token)
    async with running(target, draft) as run:
        for max_new_tokens in (1, 2, 3, 7, 8):
            result = await run.generate(request(max_new_tokens=max_new_tokens, num_draft_tokens=5))
            assert result.token_ids == EXPECTED[:max_new_tokens]
    for command in target.commands:
        if command.HasField("window"):
            opening = next(c.open for c in target.commands if c.sequence_id == command.sequence_id)
            assert command.window.base_length + len(command.window.token_ids) < opening.max_length
    assert_in_step(target, draft)


@pytest.mark.parametrize("prompt_length", [28, 31, 32, 33, 60, 62, 63])
async def test_past_the_drafters_context_it_is_plain_decoding(prompt_length: int) -> None:
    """B30: the target's context is 64, the drafter's 32."""
    target, draft = FakeTarget(max_context_length=64), FakeDraft(table_token, max_context_length=32)
    prompt = [2 + index % 300 for index in range(prompt_length)]
    async with running(target, draft) as run:
        result = await run.generate(request(prompt, max_new_tokens=100))
        assert result.token_ids == plain_continuation(prompt, 64 - prompt_length)
        assert result.finished is not None
        assert result.finished.finish_reason == 2
        if prompt_length < 62:
            assert run.counting.by_attribute(names.FALLBACKS).get("context", 0) > 0
            assert result.finished.stats.num_fallback_rounds > 0
    assert_in_step(target, draft)


@pytest.mark.parametrize("tree_width", [2, 3])
async def test_trees_pass_through_and_their_accepted_path_is_committed(tree_width: int) -> None:
    target, draft = FakeTarget(), FakeDraft(half_right)
    draft.tree_width = tree_width
    async with running(target, draft) as run:
        result = await run.generate(request(num_draft_tokens=6))
    assert result.token_ids == EXPECTED
    assert sum(report.num_accepted_tokens for report in result.rounds) > 3
    assert any(command.window.parents for command in target.commands)
    assert_in_step(target, draft)


# B43: the draft service is absent, dies, hangs, is wrong, or has nothing to say.


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_module, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(drafter_module, "_LAST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(verifier_module, "_FIRST_PAUSE_SECONDS", 0.005)


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


async def test_a_draft_service_that_hangs_costs_one_timeout_and_then_rests() -> None:
    draft = FakeDraft()
    draft.is_frozen = True
    async with running(FakeTarget(), draft, draft_timeout_seconds=0.2) as run:
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
    assert_in_step(target)


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
    assert_in_step(target)


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
    assert result.rounds[-1].num_accepted_tokens > 0
    assert_in_step(target, draft)


# The target loses what it knew.


async def test_the_target_is_restarted_in_mid_generation(short_pauses: None) -> None:
    """B33: the same text, from a target that has never heard of the sequence."""
    target, draft = FakeTarget(), FakeDraft()
    target.delay_seconds = 0.005
    async with (
        serving(draft) as draft_port,
        serving(target) as port,
        running(f"127.0.0.1:{port}", f"127.0.0.1:{draft_port}") as run,
    ):
        generating = asyncio.create_task(run.generate(request(max_new_tokens=200)))
        await until(lambda: len(target.commands) > 20)
        target.break_streams()
        await until(lambda: not run.service.target.is_available)
        result = await generating
    assert result.token_ids == plain_continuation(PROMPT, 200)
    assert run.counting.by_attribute(names.RESYNCS)["target"] == 1
    assert_in_step(target, draft)


@pytest.mark.parametrize("failure", [FailedPreconditionError("unknown"), ResourceExhaustedError("out of memory")])
async def test_a_sequence_that_the_target_lost_is_opened_again(
    failure: FailedPreconditionError | ResourceExhaustedError, short_pauses: None
) -> None:
    target, draft = FakeTarget(), FakeDraft()
    seen = 0

    def lose_some(command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        nonlocal seen
        seen += 1
        if command.HasField("window") and seen % 3 == 0:
            target.sequences.pop(command.sequence_id)
            event.failed.CopyFrom(failure.to_status())
        return [event]

    target.change = lose_some
    async with running(target, draft) as run:
        result = await run.generate(request(max_new_tokens=60))
        assert result.token_ids == plain_continuation(PROMPT, 60)
        assert run.counting.by_attribute(names.RESYNCS)["target"] > 3
        epochs = [command.open.epoch for command in target.commands if command.HasField("open")]
        assert epochs == list(range(1, len(epochs) + 1))
    assert_in_step(target, draft)


@pytest.mark.parametrize(
    "change",
    [
        lambda verdict: setattr(verdict, "base_length", verdict.base_length - 1),
        lambda verdict: setattr(verdict, "committed_length", verdict.committed_length + 1),
        lambda verdict: setattr(verdict, "num_judged_tokens", 9),
        lambda verdict: setattr(verdict, "next_token_id", 320),
        lambda verdict: verdict.accepted_nodes.append(7),
        lambda verdict: verdict.accepted_nodes.insert(0, 1),
    ],
)
async def test_an_impossible_verdict_is_never_committed(
    change: Callable[[target_pb2.Verdict], None], short_pauses: None
) -> None:
    target, draft = FakeTarget(), FakeDraft(table_token)

    def lie_once(command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        if command.HasField("window") and command.window.round == 2:
            change(event.verdict)
        return [event]

    target.change = lie_once
    async with running(target, draft) as run:
        result = await run.generate()
        assert result.token_ids == EXPECTED
        assert run.counting.by_attribute(names.RESYNCS)["target"] == 1


async def test_late_and_repeated_answers_change_nothing() -> None:
    """B32, end to end."""
    target, draft = FakeTarget(), FakeDraft()
    last: list[target_pb2.TargetEvent] = []

    def repeat(_: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        events = [*last[-1:], event, event]
        last.append(event)
        return events

    target.change = repeat
    async with running(target, draft) as run:
        assert (await run.generate()).token_ids == EXPECTED
        assert run.counting.by_attribute(names.STALE_EVENTS)["target"] > 10
    assert_in_step(target, draft)

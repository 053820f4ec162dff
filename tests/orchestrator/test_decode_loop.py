"""The decode loop, seen from a client: the text is the target's own, whatever the services do."""

from collections.abc import Callable, Iterable, Sequence

import pytest

from specdec.telemetry import names
from specdec.v1 import target_pb2
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import PROMPT, request, running
from tests.orchestrator.serving import until
from tests.orchestrator.table import half_right, plain_continuation, table_token

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

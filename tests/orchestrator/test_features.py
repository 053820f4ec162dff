"""The target's features pass through the orchestrator to a drafter that reads them, and a lack of them harms nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from orchestrator import completion
from orchestrator.rounds import Round
from orchestrator.window_sizes import NO_TOKENS, WindowSizes
from specdec.telemetry import names
from specdec.v1 import draft_pb2, target_pb2
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import PROMPT, request, running
from tests.orchestrator.serving import until
from tests.orchestrator.table import plain_continuation, table_token

EXPECTED = plain_continuation(PROMPT, 24)
OF_TARGET: dict[str, Any] = {"hidden_size": 8, "num_hidden_states": 4}
OF_DRAFT: dict[str, Any] = {"hidden_size": 8, "feature_states": [2, 4], "max_feature_tokens": 99}


def features_at(length: int) -> bytes:
    """Stand for the features of the verdict after which a sequence has this length."""
    return b"features before %d" % length


class GivingTarget(FakeTarget):
    """Gives features where it is asked for them."""

    def __init__(self, **facts: Any) -> None:
        super().__init__(**{**OF_TARGET, **facts})
        self.asking: set[bytes] = set()
        self.change = self._give

    def _give(
        self, command: target_pb2.TargetCommand, event: target_pb2.TargetEvent
    ) -> Iterable[target_pb2.TargetEvent]:
        if command.open.feature_states:
            self.asking.add(command.sequence_id)
        if command.sequence_id in self.asking:
            verdict = event.opened.first if event.HasField("opened") else event.verdict
            verdict.features = features_at(verdict.committed_length)
        return [event]

    @property
    def opens(self) -> list[target_pb2.TargetOpen]:
        return [command.open for command in self.commands if command.HasField("open")]


def commits(draft: FakeDraft) -> list[draft_pb2.DraftCommit]:
    return [command.commit for command in draft.commands if command.HasField("commit")]


async def test_each_commit_carries_the_features_of_its_verdict() -> None:
    target, draft = GivingTarget(), FakeDraft(**OF_DRAFT)
    async with running(target, draft) as run:
        result = await run.generate()
    assert result.token_ids == EXPECTED
    (opening,) = target.opens
    assert list(opening.feature_states) == [2, 4]
    assert opening.max_feature_tokens == 99
    sent = commits(draft)
    # The one of the open's verdict is among them.
    assert sent[0].committed_length == len(PROMPT) + 1
    assert len(sent) > 5
    assert all(commit.features == features_at(commit.committed_length) for commit in sent)
    assert not draft.refusals


async def test_who_reads_none_is_sent_none() -> None:
    target, draft = GivingTarget(), FakeDraft()
    async with running(target, draft) as run:
        await run.generate()
    assert [list(opening.feature_states) for opening in target.opens] == [[]]
    assert all(commit.features == b"" for commit in commits(draft))


async def test_a_request_without_drafts_asks_for_none() -> None:
    target, draft = GivingTarget(), FakeDraft(**OF_DRAFT)
    async with running(target, draft) as run:
        result = await run.generate(request(num_draft_tokens=0))
    assert result.token_ids == EXPECTED
    assert [list(opening.feature_states) for opening in target.opens] == [[]]


@pytest.mark.parametrize(
    ("of_target", "named"),
    [
        ({"num_hidden_states": 3}, ["hidden state 4", "gives 3"]),
        ({"num_hidden_states": 0, "hidden_size": 0}, ["hidden state 4", "gives none"]),
        ({"hidden_size": 16}, ["hidden states of 8", "has 16"]),
    ],
)
async def test_a_target_that_lacks_what_the_draft_reads_is_named_and_asked_for_nothing(
    of_target: dict[str, Any], named: list[str]
) -> None:
    target, draft = GivingTarget(**of_target), FakeDraft(**OF_DRAFT)
    async with running(target, draft) as run:
        result = await run.generate()
        assert run.service.drafts is not None
        mismatch = run.service.drafts.mismatch
        assert set(run.counting.by_attribute(names.FALLBACKS)) == {"mismatch"}
    assert result.token_ids == EXPECTED
    assert all(value in mismatch for value in named), mismatch
    assert not draft.commands
    assert [list(opening.feature_states) for opening in target.opens] == [[]]


async def test_a_target_with_more_states_than_the_draft_reads_will_do() -> None:
    target, draft = GivingTarget(num_hidden_states=30), FakeDraft(**OF_DRAFT)
    async with running(target, draft) as run:
        await run.generate()
        assert run.service.drafts is not None
        assert run.service.drafts.mismatch == ""
    assert draft.commands


async def test_a_draft_that_is_opened_again_goes_on_with_what_comes(short_pauses: None) -> None:
    target, draft = GivingTarget(), FakeDraft(table_token, **OF_DRAFT)
    target.delay_seconds = 0.01
    async with running(target, draft) as run:
        generating = asyncio.create_task(run.generate(request(max_new_tokens=300)))
        await until(lambda: len(commits(draft)) > 4)
        draft.break_streams()
        result = await generating
        assert run.counting.by_attribute(names.RESYNCS) == {"draft": 1}
    assert result.token_ids == plain_continuation(PROMPT, 300)
    again = max(place for place, command in enumerate(draft.commands) if command.HasField("open"))
    assert again > 4
    # An open carries tokens alone, so nothing is asked of the model yet. The target is asked for all features,
    # once, and they come with the first commit.
    assert draft.commands[again].open.num_draft_tokens == 0
    windows = [command.window for command in target.commands if command.HasField("window")]
    assert [window.max_feature_tokens for window in windows if window.max_feature_tokens] == [99]
    (asking,) = [window for window in windows if window.max_feature_tokens]
    assert asking.base_length == len(draft.commands[again].open.token_ids)
    assert not asking.token_ids
    later = [command.commit for command in draft.commands[again + 1 :] if command.HasField("commit")]
    assert len(later) > 4
    assert all(commit.features == features_at(commit.committed_length) for commit in later)
    assert not draft.refusals


async def test_a_drafter_that_came_late_is_left_alone(short_pauses: None) -> None:
    """The target was not asked for features when the request began, and without any drafts would be worth nothing."""
    target, draft = GivingTarget(), FakeDraft(table_token, **OF_DRAFT)
    target.delay_seconds = 0.01
    async with running(target, draft) as run:
        assert run.service.drafts is not None
        (link,) = run.service.drafts.links
        info, link.model_info = link.model_info, None
        generating = asyncio.create_task(run.generate(request(max_new_tokens=200)))
        await until(lambda: len(target.commands) > 4)
        link.model_info = info
        result = await generating
        assert "late" in run.counting.by_attribute(names.FALLBACKS)
    assert result.token_ids == plain_continuation(PROMPT, 200)
    assert not [command for command in draft.commands if command.HasField("open")]


class Scripted:
    """Begins without drafts, and wants some from a round on."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.num_chosen = 0

    def begins_with_drafts(self) -> bool:
        return False

    def choose(self) -> WindowSizes:
        self.num_chosen += 1
        return WindowSizes(4, 4) if self.num_chosen > PLAIN_ROUNDS else NO_TOKENS

    def observe(self, done: Round) -> None:
        pass


PLAIN_ROUNDS = 6


@pytest.mark.parametrize("pipeline", ["off", "candidates"])
async def test_who_begins_without_drafts_is_sent_no_features_before_they_are_wanted(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "MeasuredWindowSize", Scripted)
    target, draft = GivingTarget(), FakeDraft(table_token, **OF_DRAFT)
    async with running(target, draft, pipeline=pipeline) as run:
        result = await run.generate(request(max_new_tokens=100, num_draft_tokens=None))
    assert result.token_ids == plain_continuation(PROMPT, 100)
    (opening,) = target.opens
    # The states are kept all the same, for the drafts to come.
    assert list(opening.feature_states) == [2, 4]
    assert opening.max_feature_tokens == 0
    windows = [command.window for command in target.commands if command.HasField("window")]
    without = [window.without_features for window in windows]
    assert without == [True] * PLAIN_ROUNDS + [False] * (len(windows) - PLAIN_ROUNDS)
    assert windows[PLAIN_ROUNDS].max_feature_tokens == 99
    opens = [command.open for command in draft.commands if command.HasField("open")]
    assert [len(each.token_ids) for each in opens] == [len(PROMPT) + 1 + PLAIN_ROUNDS]
    assert len(commits(draft)) > 4
    assert all(commit.features == features_at(commit.committed_length) for commit in commits(draft))


async def test_a_sequence_that_is_lost_while_no_drafts_are_wanted_is_not_opened_again(
    short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending(Scripted):
        def begins_with_drafts(self) -> bool:
            return True

        def choose(self) -> WindowSizes:
            self.num_chosen += 1
            return WindowSizes(4, 4) if self.num_chosen < 4 else NO_TOKENS

    monkeypatch.setattr(completion, "MeasuredWindowSize", Ending)
    target, draft = GivingTarget(), FakeDraft(table_token, **OF_DRAFT)
    target.delay_seconds = 0.01
    async with running(target, draft) as run:
        generating = asyncio.create_task(run.generate(request(max_new_tokens=100, num_draft_tokens=None)))
        await until(lambda: len(commits(draft)) > 6)
        draft.break_streams()
        result = await generating
    assert result.token_ids == plain_continuation(PROMPT, 100)
    assert len([command for command in draft.commands if command.HasField("open")]) == 1
    last = [command.window for command in target.commands if command.HasField("window")][-1]
    assert last.without_features


async def test_a_target_that_is_opened_again_is_asked_again(short_pauses: None) -> None:
    target, draft = GivingTarget(), FakeDraft(table_token, **OF_DRAFT)
    target.delay_seconds = 0.01
    async with running(target, draft) as run:
        generating = asyncio.create_task(run.generate(request(max_new_tokens=300)))
        await until(lambda: len(commits(draft)) > 4)
        target.break_streams()
        result = await generating
    assert result.token_ids == plain_continuation(PROMPT, 300)
    assert len(target.opens) == 2
    assert all(list(opening.feature_states) == [2, 4] for opening in target.opens)
    assert all(commit.features == features_at(commit.committed_length) for commit in commits(draft))
    assert not draft.refusals

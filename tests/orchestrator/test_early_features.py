"""Features that a target tells while it prefills reach the draft service at once, which then prefills beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from orchestrator.links.draft import DraftLink, DraftSequence
from orchestrator.links.mailbox import Mailbox
from specdec.telemetry import names
from specdec.v1 import draft_pb2, model_pb2, target_pb2
from tests.orchestrator.fakes import Context, FakeDraft, FakeTarget
from tests.orchestrator.running import request, running
from tests.orchestrator.serving import until
from tests.orchestrator.table import plain_continuation

PROMPT = list(range(40, 140))
OF_TARGET: dict[str, Any] = {"hidden_size": 8, "num_hidden_states": 4}
OF_DRAFT: dict[str, Any] = {"hidden_size": 8, "feature_states": [2, 4], "max_feature_tokens": 999}


class TellingTarget(FakeTarget):
    """Tells features of a prompt in two parts before it answers an open that asks for that."""

    def __init__(self, ends: tuple[int, ...] = (50, 90)) -> None:
        super().__init__(**OF_TARGET)
        self.ends = ends
        self.prefill_seconds = 0.0
        self.change = self._tell

    def _tell(
        self, command: target_pb2.TargetCommand, event: target_pb2.TargetEvent
    ) -> Iterable[target_pb2.TargetEvent]:
        if command.open.tells_features_early:
            for end in self.ends:
                told = model_pb2.FeaturesTold(end=end, features=b"before %d" % end)
                yield target_pb2.TargetEvent(
                    sequence_id=event.sequence_id, epoch=event.epoch, round=event.round, features=told
                )
            event.opened.first.features = b"the rest"
        yield event

    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[target_pb2.VerifyRequest], context: Context
    ) -> AsyncIterator[target_pb2.VerifyResponse]:
        """What is told early comes a while before the answer."""
        async for response in super().Verify(request_iterator, context):
            early = [event for event in response.events if event.HasField("features")]
            if early:
                yield target_pb2.VerifyResponse(events=early)
                await asyncio.sleep(self.prefill_seconds)
            yield target_pb2.VerifyResponse(events=response.events[len(early) :], load=response.load)


def kinds(draft: FakeDraft) -> list[str]:
    return [str(command.WhichOneof("command")) for command in draft.commands]


async def test_each_part_is_handed_on_and_the_commit_carries_the_rest() -> None:
    target, draft = TellingTarget(), FakeDraft(**OF_DRAFT)
    async with running(target, draft) as run:
        result = await run.generate(request(PROMPT))
    assert result.token_ids == plain_continuation(PROMPT, 24)
    assert kinds(draft)[:4] == ["open", "features", "features", "commit"]
    told = [command.features for command in draft.commands[1:3]]
    assert [(each.epoch, each.told.end, each.told.features) for each in told] == [
        (1, 50, b"before 50"),
        (1, 90, b"before 90"),
    ]
    assert draft.commands[3].commit.features == b"the rest"
    assert not draft.refusals


async def test_a_draft_that_has_run_the_prompt_is_waited_for() -> None:
    """Without knowing that, a model that lacks so many tokens is not waited for longer than a plain round takes."""
    causes = []
    for ends in ((50, 90), (50, 60)):
        draft = FakeDraft(**OF_DRAFT)
        draft.delay_seconds = 0.05
        target = TellingTarget(ends)
        target.prefill_seconds = 0.2
        async with running(target, draft) as run:
            await run.generate(request(PROMPT, max_new_tokens=8))
            causes.append(run.counting.by_attribute(names.FALLBACKS))
    assert causes[0] == {}
    assert causes[1]["prefill"] >= 1


async def test_a_draft_that_claims_more_than_there_is_gains_nothing() -> None:
    def boast(command: draft_pb2.DraftCommand, event: draft_pb2.DraftEvent) -> Iterable[draft_pb2.DraftEvent]:
        if event.HasField("prefilled"):
            event.prefilled.length = (1 << 32) - 1
        return [event]

    draft = FakeDraft(**OF_DRAFT)
    draft.change = boast
    async with running(TellingTarget(), draft) as run:
        result = await run.generate(request(PROMPT))
    assert result.token_ids == plain_continuation(PROMPT, 24)


async def test_who_reads_none_is_told_none() -> None:
    target, draft = TellingTarget(), FakeDraft()
    async with running(target, draft) as run:
        await run.generate(request(PROMPT))
    assert "features" not in kinds(draft)
    assert [command.open.tells_features_early for command in target.commands if command.HasField("open")] == [False]


async def test_a_target_that_is_opened_in_mid_request_tells_all_with_its_answer(short_pauses: None) -> None:
    target, draft = TellingTarget(), FakeDraft(**OF_DRAFT)
    target.delay_seconds = 0.01
    async with running(target, draft) as run:
        generating = asyncio.create_task(run.generate(request(PROMPT, max_new_tokens=100)))
        await until(lambda: len(target.commands) > 4)
        target.break_streams()
        result = await generating
    assert result.token_ids == plain_continuation(PROMPT, 100)
    early = [command.open.tells_features_early for command in target.commands if command.HasField("open")]
    assert early == [True, False]


class StalledLink(DraftLink):
    """Sends nothing; counts."""

    is_available = True
    num_unsent = 0

    def __init__(self) -> None:
        self.sent: list[draft_pb2.DraftCommand] = []

    def send(self, command: draft_pb2.DraftCommand) -> None:
        self.sent.append(command)


def test_a_replica_that_does_not_read_is_told_none() -> None:
    link = StalledLink()
    sequence = DraftSequence(link, Mailbox(bytes(16), 3))
    told = model_pb2.FeaturesTold(end=1, features=b"some")
    for link.num_unsent in (0, 255, 256, 1000):
        sequence.tell_features(told)
    link.num_unsent, link.is_available = 0, False
    sequence.tell_features(told)
    assert [(command.sequence_id, command.features.epoch) for command in link.sent] == 2 * [(bytes(16), 3)]

"""Windows of many sequences in columns: what goes together, in which order, and what goes alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from orchestrator.candidates import Candidates
from orchestrator.links.target import TargetSequence
from orchestrator.links.window_batches import MAX_WINDOWS
from orchestrator.window import EMPTY_WINDOW, Window
from specdec.candidates import RoundOutcome
from specdec.v1 import model_pb2, target_pb2
from tests.orchestrator.fakes import FakeDraft
from tests.orchestrator.links.test_target import linked, opened
from tests.orchestrator.links.watched_target import CHECKSUM, OPENED, WatchedTarget, ask, several
from tests.orchestrator.running import request, running
from tests.orchestrator.serving import until
from tests.orchestrator.table import plain_continuation, table_token
from tests.recorded_spans import recorded_spans

TRACED = model_pb2.TraceContext(traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01")
LAW = model_pb2.DraftDistribution(token_ids=[1, 2], weights=[3, 1])


def ids(sequences: Sequence[TargetSequence]) -> list[bytes]:
    return [sequence._mailbox.sequence_id for sequence in sequences]


async def test_windows_of_one_turn_are_one_command_and_all_commands_keep_their_order() -> None:
    target = WatchedTarget()
    async with linked(target) as link:
        one, two, three, four = await several(link, 4)
        num_sent = len(target.sent)
        candidates: Candidates = {RoundOutcome(0, 9): EMPTY_WINDOW}
        ask(one, Window([5, 6]))
        ask(two, Window([7], without_features=True))
        five = opened(link)
        ask(three, EMPTY_WINDOW, model_pb2.TraceContext())
        one.push(2, len(OPENED), CHECKSUM, candidates)
        ask(four, Window([8, 9, 10]))
        two.close()
        four.close()
        assert await target.kinds_after(num_sent, 7) == [
            "windows",
            "open",
            "windows",
            "candidates",
            "windows",
            "close",
            "close",
        ]
        first, second, third = target.batches
        assert first == target_pb2.WindowBatch(
            sequence_ids=ids([one, two]),
            epochs=[1, 1],
            rounds=[1, 1],
            base_lengths=[len(OPENED)] * 2,
            checksums=[CHECKSUM] * 2,
            num_draft_tokens=[2, 1],
            token_ids=[5, 6, 7],
            without_features=[False, True],
        )
        assert list(second.sequence_ids) == ids([three])
        assert list(third.sequence_ids) == ids([four])
        assert list(third.token_ids) == [8, 9, 10]
        # Answers come in columns too, and each reaches its own.
        for sequence in (one, three, five):
            assert await sequence.answered(5.0)
        assert one.verdict().next_token_id == three.verdict().next_token_id == table_token(OPENED)
        assert any(len(event.verdicts.rounds) > 1 for event in target.told)
    assert not target.refusals


async def test_what_is_asked_after_a_message_has_left_is_in_the_next_one() -> None:
    target = WatchedTarget()
    async with linked(target) as link:
        one, two = await several(link, 2)
        ask(one)
        await until(lambda: len(target.batches) == 1)
        ask(two)
        await until(lambda: len(target.batches) == 2)
    assert [list(batch.sequence_ids) for batch in target.batches] == [ids([one]), ids([two])]


async def test_a_command_has_at_most_so_many_windows() -> None:
    target = WatchedTarget()
    async with linked(target) as link:
        (sequence,) = await several(link, 1)
        target.is_frozen = True
        count = 2 * MAX_WINDOWS + 9
        for round_index in range(1, count + 1):
            ask(sequence, round_index=round_index)
        await until(lambda: len(target.batches) == 3)
    assert [len(batch.rounds) for batch in target.batches] == [MAX_WINDOWS, MAX_WINDOWS, 9]
    assert [index for batch in target.batches for index in batch.rounds] == list(range(1, count + 1))


@pytest.mark.parametrize(
    ("window", "context"),
    [
        (Window([5, 6], parents=[-1, -1]), None),
        (Window([5], distributions=[LAW]), None),
        (Window([5], max_feature_tokens=7), None),
        (Window([5]), TRACED),
    ],
)
async def test_what_columns_do_not_tell_goes_alone_and_whole(
    window: Window, context: model_pb2.TraceContext | None
) -> None:
    target = WatchedTarget()
    async with linked(target) as link:
        one, two, three = await several(link, 3)
        num_sent = len(target.sent)
        ask(one)
        ask(two, window, context)
        ask(three)
        assert await target.kinds_after(num_sent, 3) == ["windows", "window", "windows"]
    expected = target_pb2.Window(
        epoch=1,
        round=1,
        base_length=len(OPENED),
        checksum=CHECKSUM,
        token_ids=window.token_ids,
        parents=window.parents,
        distributions=window.distributions,
        trace_context=context,
        max_feature_tokens=window.max_feature_tokens,
    )
    assert target.sent[num_sent + 1] == target_pb2.TargetCommand(sequence_id=ids([two])[0], window=expected)


async def test_who_does_not_say_that_it_takes_batches_is_sent_none() -> None:
    target = WatchedTarget(takes_window_batches=False)
    async with linked(target) as link:
        sequences = await several(link, 3)
        for sequence in sequences:
            ask(sequence, Window([5], without_features=True))
        await until(lambda: len(target.sent) == 6)
        for sequence in sequences:
            assert await sequence.answered(5.0)
            assert sequence.verdict().next_token_id == table_token(OPENED)
    windows = [command.window for command in target.sent[3:]]
    assert [list(window.token_ids) for window in windows] == [[5]] * 3
    assert all(window.without_features for window in windows)
    assert not any(event.HasField("verdicts") for event in target.told)


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("takes_batches", [False, True])
async def test_texts_are_the_same_in_columns_and_alone(takes_batches: bool, is_traced: bool) -> None:
    target, draft = WatchedTarget(takes_window_batches=takes_batches), FakeDraft()
    target.delay_seconds = draft.delay_seconds = 0.005
    prompts = [[50 + index] for index in range(8)]
    with ExitStack() as stack:
        if is_traced:
            stack.enter_context(recorded_spans())
        async with running(target, draft) as run:
            results = await asyncio.gather(*(run.generate(request(prompt)) for prompt in prompts))
    assert [result.token_ids for result in results] == [plain_continuation(prompt, 24) for prompt in prompts]
    assert not target.refusals
    assert not draft.refusals
    singly = [command.window for command in target.sent if command.HasField("window")]
    num_told = [len(event.verdicts.rounds) for event in target.told if event.HasField("verdicts")]
    if takes_batches and not is_traced:
        assert not singly
        assert max(len(batch.rounds) for batch in target.batches) > 3
        assert max(num_told) > 3
    else:
        assert not target.batches
        assert not num_told
        assert len(singly) > 8
        assert all(bool(window.trace_context.traceparent) is is_traced for window in singly)

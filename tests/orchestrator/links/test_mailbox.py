"""The one event that is awaited, and those that may come before they are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.links.draft import DraftSequence
from orchestrator.links.mailbox import AnswerOverdue, LinkLost, Mailbox
from orchestrator.links.target import TargetSequence
from specdec.v1 import draft_pb2, target_pb2

ID = bytes(16)


def verdict(round_index: int, epoch: int = 1) -> target_pb2.TargetEvent:
    event = target_pb2.TargetEvent(sequence_id=ID, epoch=epoch, round=round_index)
    event.verdict.base_length = round_index
    return event


async def test_only_what_is_expected_or_foreseen_is_let_in() -> None:
    mailbox: Mailbox[target_pb2.TargetEvent] = Mailbox(ID, 1)
    mailbox.expect(3)
    mailbox.foresee(4)
    assert not mailbox.put(verdict(2))
    assert not mailbox.put(verdict(5))
    assert not mailbox.put(verdict(4, epoch=2))
    assert mailbox.put(verdict(4))
    assert not mailbox.put(verdict(4)), "a repeated answer"
    assert mailbox.put(verdict(3))
    assert (await mailbox.take(1)).round == 3
    mailbox.expect(4)
    assert (await mailbox.take(1)).round == 4


async def test_several_rounds_may_be_early_and_none_is_lost_by_expecting_one() -> None:
    mailbox: Mailbox[target_pb2.TargetEvent] = Mailbox(ID, 1)
    mailbox.foresee(1)
    assert mailbox.put(verdict(1))
    mailbox.foresee(2)
    mailbox.expect(1)
    assert (await mailbox.take(1)).round == 1
    assert mailbox.put(verdict(2))
    mailbox.foresee(3)
    assert mailbox.put(verdict(3))
    for round_index in (2, 3):
        mailbox.expect(round_index)
        assert (await mailbox.take(1)).round == round_index


async def test_what_was_foreseen_for_a_round_that_is_over_is_forgotten() -> None:
    mailbox: Mailbox[target_pb2.TargetEvent] = Mailbox(ID, 1)
    mailbox.foresee(2)
    mailbox.expect(5)
    assert not mailbox.put(verdict(2))
    with pytest.raises(AnswerOverdue):
        await mailbox.take(0.01)


async def test_a_failure_counts_more_than_what_was_early() -> None:
    mailbox: Mailbox[target_pb2.TargetEvent] = Mailbox(ID, 1)
    mailbox.foresee(2)
    mailbox.put(verdict(2))
    mailbox.fail(LinkLost("broken"))
    with pytest.raises(LinkLost):
        mailbox.expect(2)


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_candidates_answer_nothing(is_wanted: bool) -> None:
    taken: list[draft_pb2.DraftEvent] = []

    def aside(event: draft_pb2.DraftEvent) -> bool:
        taken.append(event)
        return is_wanted

    told = draft_pb2.DraftEvent(sequence_id=ID, epoch=1, round=1, candidates=draft_pb2.Candidates())
    mailbox: Mailbox[draft_pb2.DraftEvent] = Mailbox(ID, 1, aside)
    mailbox.expect(1)
    assert mailbox.put(told) is is_wanted
    assert taken == [told]
    assert mailbox.put(draft_pb2.DraftEvent(sequence_id=ID, epoch=1, round=1, proposal=draft_pb2.Proposal()))
    assert (await mailbox.take(1)).HasField("proposal")
    nobody: Mailbox[draft_pb2.DraftEvent] = Mailbox(ID, 1)
    assert not nobody.put(told)


async def test_an_answer_may_be_waited_for_again() -> None:
    mailbox: Mailbox[target_pb2.TargetEvent] = Mailbox(ID, 1)
    mailbox.expect(2)
    assert not await mailbox.wait(0.01)
    assert mailbox.put(verdict(2))
    assert await mailbox.wait(0.01)
    assert mailbox.take_now().round == 2
    with pytest.raises(AnswerOverdue):
        mailbox.take_now()


@pytest.mark.parametrize("kind", [TargetSequence, DraftSequence])
async def test_a_closed_sequence_leaves_no_timer(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def noting(*arguments: Any) -> asyncio.TimerHandle:
        timers.append(call_at(*arguments))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", noting)
    mailbox: Mailbox[target_pb2.TargetEvent] = Mailbox(ID, 1)
    mailbox.expect(2)
    waiting = asyncio.create_task(mailbox.wait(60))
    await asyncio.sleep(0)
    assert mailbox.put(verdict(2))
    assert await waiting
    kind(SimpleNamespace(detach=lambda mailbox, closing: None), mailbox).close()
    assert [timer.cancelled() for timer in timers] == [True]

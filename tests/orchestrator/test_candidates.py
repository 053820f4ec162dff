"""Candidate windows between fakes: the same text, rounds that nobody asked for, and whatever can go wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import pytest

from specdec.candidates import outcome_of
from specdec.checksum import prefix_checksum
from specdec.client import GenerationResult
from specdec.errors import FailedPreconditionError
from specdec.telemetry import names
from specdec.v1 import draft_pb2, generation_pb2, model_pb2, sampling_pb2, target_pb2
from tests.orchestrator.fakes import FakeDraft, FakeSequence, FakeTarget
from tests.orchestrator.running import PROMPT, Running, request, running
from tests.orchestrator.table import half_right, plain_continuation, table_token

NUM_TOKENS = 40
EXPECTED = plain_continuation(PROMPT, NUM_TOKENS)
ASKED = request(max_new_tokens=NUM_TOKENS)


class GoingOnTarget(FakeTarget):
    """Goes on with candidates. As it judges at once, they always come after the verdict of the round before."""

    def __init__(self) -> None:
        super().__init__()
        self.num_gone_on = 0
        self.last: dict[bytes, target_pb2.Verdict] = {}
        self.number_of: Callable[[int], int | None] = lambda number: number

    def _answer(
        self, command: target_pb2.TargetCommand, make_event: Callable[..., target_pb2.TargetEvent]
    ) -> list[target_pb2.TargetEvent]:
        if not command.HasField("candidates"):
            events = super()._answer(command, make_event)
            self.last.update({event.sequence_id: event.verdict for event in events if event.HasField("verdict")})
            return events
        sent = command.candidates
        sequence = self.sequences.get(command.sequence_id)
        if sequence is None or sequence.epoch != sent.epoch or sent.round <= sequence.last_round:
            return []
        last = self.last[command.sequence_id]
        base = sequence.token_ids[: last.base_length]
        if (sent.round, sent.base_length) != (sequence.last_round + 1, len(base)):
            self.refusals.append(FailedPreconditionError("candidates of another round"))
        if sent.checksum != prefix_checksum(base):
            self.refusals.append(FailedPreconditionError("candidates of another prefix"))
        for number, window in enumerate(sent.windows):
            if outcome_of(last.accepted_nodes, last.next_token_id) == (
                window.num_accepted_tokens,
                window.next_token_id,
            ):
                return self._go_on(command, sequence, number, window.token_ids, make_event)
        return []

    def _go_on(
        self,
        command: target_pb2.TargetCommand,
        sequence: FakeSequence,
        number: int,
        token_ids: Sequence[int],
        make_event: Callable[..., target_pb2.TargetEvent],
    ) -> list[target_pb2.TargetEvent]:
        if len(sequence.token_ids) >= sequence.max_length:
            return []
        self.num_gone_on += 1
        sequence.last_round += 1
        event = make_event(sequence_id=command.sequence_id, epoch=sequence.epoch, round=sequence.last_round)
        self._judge(sequence, token_ids, [], event.verdict)
        told = self.number_of(number)
        if told is not None:
            event.verdict.candidate = told
        self.last[command.sequence_id] = event.verdict
        return list(self.change(command, event))


Spoil = Callable[[draft_pb2.Candidates], object]


def telling(draft: FakeDraft, spoil: Spoil = lambda candidates: None) -> Callable[..., Iterable[draft_pb2.DraftEvent]]:
    """What makes a fake drafter tell continuations: a wrong outcome, and the right one."""

    def tell(command: draft_pb2.DraftCommand, event: draft_pb2.DraftEvent) -> Iterable[draft_pb2.DraftEvent]:
        yield event
        commit = command.commit
        if not commit.max_candidates or not event.HasField("proposal"):
            return
        sequence = draft.sequences[command.sequence_id]
        path: list[int] = []
        while len(path) < len(sequence.proposed) and sequence.proposed[len(path)] == table_token(
            [*sequence.token_ids, *path]
        ):
            path.append(sequence.proposed[len(path)])
        right = table_token([*sequence.token_ids, *path])
        known = [*sequence.token_ids, *path, right]
        continuation: list[int] = []
        for _ in range(commit.num_ahead_tokens):
            continuation.append(draft.next_token([*known, *continuation]))
        told = draft_pb2.DraftEvent(sequence_id=event.sequence_id, epoch=event.epoch, round=event.round)
        told.candidates.base_length = len(sequence.token_ids)
        told.candidates.candidates.add(num_accepted_tokens=0, next_token_id=1, token_ids=[2, 3])
        told.candidates.candidates.add(num_accepted_tokens=len(path), next_token_id=right, token_ids=continuation)
        spoil(told.candidates)
        yield told

    return tell


def telling_draft(spoil: Spoil = lambda candidates: None) -> FakeDraft:
    draft = FakeDraft(half_right)
    draft.change = telling(draft, spoil)
    return draft


def num_candidate_rounds(result: GenerationResult) -> int:
    return sum(report.is_candidate for report in result.rounds)


async def test_rounds_under_way_are_not_asked_for_and_the_text_is_the_same() -> None:
    target, draft = GoingOnTarget(), telling_draft()
    async with running(target, draft, pipeline="candidates") as run:
        result = await run.generate(ASKED)
    assert result.token_ids == EXPECTED
    assert not target.refusals
    assert not draft.refusals
    assert num_candidate_rounds(result) == target.num_gone_on > 5
    windows = [command.window.round for command in target.commands if command.HasField("window")]
    assert len(windows) == len(result.rounds) - 1 - target.num_gone_on
    commits = [command.commit for command in draft.commands if command.HasField("commit")]
    assert sum(commit.is_candidate for commit in commits) == target.num_gone_on
    assert run.counting.by_attribute(names.RESYNCS) == {}


@pytest.mark.parametrize("pipeline", ["off", "ahead"])
async def test_nobody_is_told_in_other_modes(pipeline: str) -> None:
    target, draft = GoingOnTarget(), telling_draft()
    async with running(target, draft, pipeline=pipeline) as run:
        result = await run.generate(ASKED)
    assert result.token_ids == EXPECTED
    assert not any(command.HasField("candidates") for command in target.commands)
    assert not any(command.commit.max_candidates for command in draft.commands)


async def test_rules_that_hang_on_the_draft_have_no_candidates() -> None:
    rules = [model_pb2.ACCEPTANCE_RULE_COUPLED, model_pb2.ACCEPTANCE_RULE_REJECTION]
    target, draft = GoingOnTarget(), telling_draft()
    for fake in (target, draft):
        del fake.model_info.acceptance_rules[:]
        fake.model_info.acceptance_rules.extend(rules)
    async with running(target, draft, pipeline="candidates") as run:
        asked = request(max_new_tokens=NUM_TOKENS, acceptance_rule=model_pb2.ACCEPTANCE_RULE_REJECTION)
        result = await run.generate(asked)
        assert result.token_ids == EXPECTED
        assert not any(command.HasField("candidates") for command in target.commands)
        asked.sampling.temperature = 0.0
        assert num_candidate_rounds(await run.generate(asked)) > 0


def duplicate(candidates: draft_pb2.Candidates) -> None:
    candidates.candidates.append(candidates.candidates[0])


def too_many(candidates: draft_pb2.Candidates) -> None:
    candidates.candidates.extend([draft_pb2.Candidate(next_token_id=n) for n in range(10, 30)])


@pytest.mark.parametrize(
    "spoil",
    [
        duplicate,
        too_many,
        lambda candidates: setattr(candidates, "base_length", candidates.base_length + 1),
        lambda candidates: candidates.candidates[0].token_ids.append(1 << 30),
        lambda candidates: candidates.candidates[0].token_ids.extend([1] * 9),
        lambda candidates: setattr(candidates.candidates[0], "num_accepted_tokens", 99),
        lambda candidates: candidates.candidates.__delitem__(slice(None)),
    ],
)
async def test_what_the_draft_service_should_not_have_told_is_dropped(spoil: Spoil) -> None:
    target, draft = GoingOnTarget(), telling_draft(spoil)
    async with running(target, draft, pipeline="candidates") as run:
        result = await run.generate(ASKED)
    assert result.token_ids == EXPECTED
    assert target.num_gone_on == 0
    assert not any(command.HasField("candidates") for command in target.commands)


@pytest.mark.parametrize("number", [None, 0, 7])
async def test_a_target_that_judged_another_candidate_is_opened_again(number: int | None) -> None:
    target, draft = GoingOnTarget(), telling_draft()
    wrong = iter([True])
    target.number_of = lambda right: number if next(wrong, False) else right
    async with running(target, draft, pipeline="candidates") as run:
        result = await run.generate(ASKED)
    assert result.token_ids == EXPECTED
    assert run.counting.by_attribute(names.RESYNCS)["target"] == 1


async def test_a_drafter_that_does_not_follow_is_opened_again() -> None:
    target, draft = GoingOnTarget(), telling_draft()
    tell = draft.change

    def stray(command: draft_pb2.DraftCommand, event: draft_pb2.DraftEvent) -> Iterable[draft_pb2.DraftEvent]:
        for each in tell(command, event):
            if command.commit.is_candidate and each.HasField("proposal") and each.proposal.token_ids:
                each.proposal.token_ids[0] = 1
                draft.sequences[command.sequence_id].proposed[0] = 1
            yield each

    draft.change = stray
    async with running(target, draft, pipeline="candidates") as run:
        result = await run.generate(ASKED)
    assert result.token_ids == EXPECTED
    assert target.num_gone_on > 0
    assert run.counting.by_attribute(names.RESYNCS)["draft"] > 0
    assert not draft.refusals


async def test_the_stream_breaks_while_a_round_is_under_way() -> None:
    target, draft = GoingOnTarget(), telling_draft()
    gone_on = iter(range(3))

    def breaking(command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        if command.HasField("candidates") and next(gone_on, None) is not None:
            target.break_streams()
            return []
        return [event]

    target.change = breaking
    async with running(target, draft, pipeline="candidates") as run:
        result = await run.generate(ASKED)
    assert result.token_ids == EXPECTED
    assert run.counting.by_attribute(names.RESYNCS)["target"] == 3


@pytest.mark.parametrize("length", [2, 9, 10, 11, 12, 13, 14, 15])
async def test_a_stop_cuts_a_candidate_as_any_window(length: int) -> None:
    stop = EXPECTED[length - 1]
    first = EXPECTED.index(stop) + 1
    target, draft = GoingOnTarget(), telling_draft()
    asked = generation_pb2.GenerateRequest()
    asked.CopyFrom(ASKED)
    asked.sampling.CopyFrom(sampling_pb2.SamplingParams(seed=1, stop_token_ids=[stop]))
    async with running(target, draft, pipeline="candidates") as run:
        result = await run.generate(asked)
        assert result.token_ids == EXPECTED[:first]
        # Both services are told at once, whatever is under way.
        for fake in (target, draft):
            for _ in range(100):
                if not fake.sequences:
                    break
                await asyncio.sleep(0.02)
            assert not fake.sequences


async def test_a_slow_drafter_does_not_lose_verdicts_that_come_early() -> None:
    target, draft = GoingOnTarget(), telling_draft()
    # The target is quicker than the draft service, so that rounds are judged before they begin here.
    draft.delay_seconds = 0.02
    async with running(target, draft, pipeline="candidates") as run:
        results = await asyncio.gather(*(run.generate(ASKED) for _ in range(4)))
    assert all(result.token_ids == EXPECTED for result in results)
    assert target.num_gone_on > 10
    assert not target.refusals


async def _generate(run: Running, count: int) -> list[GenerationResult]:
    return await asyncio.gather(*(run.generate(ASKED) for _ in range(count)))


async def test_auto_tells_once_drafting_ahead_is_worth_it() -> None:
    target, draft = GoingOnTarget(), telling_draft()
    tell = draft.change

    def slow(command: draft_pb2.DraftCommand, event: draft_pb2.DraftEvent) -> Iterable[draft_pb2.DraftEvent]:
        for each in tell(command, event):
            if each.HasField("proposal"):
                each.proposal.timings.compute_microseconds = 1_000_000
            yield each

    draft.change = slow
    async with running(target, draft, pipeline="auto") as run:
        results = await _generate(run, 2)
    assert all(result.token_ids == EXPECTED for result in results)
    assert target.num_gone_on > 0

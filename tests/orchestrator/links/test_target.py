"""The link to the target: handshake, batching, and what breaks it."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.committed import CommittedTokens
from orchestrator.links import target as target_module
from orchestrator.links.mailbox import AnswerOverdue, LinkLost
from orchestrator.links.opening import Opening
from orchestrator.links.target import TargetLink, TargetSequence
from orchestrator.window import EMPTY_WINDOW, Window
from specdec.errors import FailedPreconditionError, InvalidArgumentError
from specdec.sampling.params import SamplingParams
from specdec.telemetry import names
from specdec.v1 import model_pb2, target_pb2
from tests.orchestrator.counting import Counting
from tests.orchestrator.fakes import TOKENIZER_FILES, TOKENIZER_HASH, FakeTarget
from tests.orchestrator.serving import serving, until
from tests.orchestrator.table import plain_continuation, table_token

PROMPT = [5, 6, 7]
OPENING = Opening(len(PROMPT), SamplingParams().to_proto(), model_pb2.ACCEPTANCE_RULE_COUPLED, 100)


COUNTING = Counting()


@asynccontextmanager
async def linking(port: int, counting: Counting = COUNTING) -> AsyncIterator[TargetLink]:
    """A link that has begun to connect."""
    link = TargetLink(f"127.0.0.1:{port}", counting.metrics, lambda: None)
    link.start()
    try:
        yield link
    finally:
        await link.close()


@asynccontextmanager
async def linked(target: FakeTarget, counting: Counting = COUNTING) -> AsyncIterator[TargetLink]:
    async with serving(target) as port, linking(port, counting) as link:
        assert await link.available(5)
        yield link


def opened(link: TargetLink) -> TargetSequence:
    return link.open(secrets.token_bytes(16), 1, 0, OPENING, PROMPT)


async def opening_of(sequence: TargetSequence, seconds: float = 5.0) -> target_pb2.Opened:
    """The answer to its open."""
    await sequence.answered(seconds)
    return sequence.opened()


async def verified(
    sequence: TargetSequence, round_index: int, base_length: int, checksum: int, window: Window
) -> target_pb2.Verdict:
    """A window judged."""
    sequence.ask(round_index, base_length, checksum, window)
    await sequence.answered(5.0)
    return sequence.verdict()


async def test_handshake_gives_facts_and_tokenizer() -> None:
    async with linked(FakeTarget()) as link:
        assert link.model_info is not None
        assert link.model_info.model_id == "table"
        assert link.tokenizer is not None
        assert link.tokenizer.encode_text("ab") == TOKENIZER_FILES.tokenizer().encode("ab").ids
        assert link.vocabulary == (TOKENIZER_HASH, 320)
        assert link.problem == ""


@pytest.mark.parametrize(
    ("facts", "named"),
    [({"protocol_version": 99}, ["99", "1"]), ({"tokenizer_hash": "abcd"}, ["'abcd'", TOKENIZER_HASH])],
)
async def test_a_mismatch_is_not_available_and_names_both_values(facts: dict[str, Any], named: list[str]) -> None:
    async with serving(FakeTarget(**facts)) as port, linking(port) as link:
        await until(lambda: all(value in link.problem for value in named))
        assert not link.is_available
        assert not await link.available(0.05)
        with pytest.raises(LinkLost):
            opened(link)


async def test_reports_each_change() -> None:
    states: list[bool] = []
    async with serving(FakeTarget()) as port:
        link = TargetLink(f"127.0.0.1:{port}", COUNTING.metrics, lambda: states.append(link.is_available))
        link.start()
        assert await link.available(5)
    await until(lambda: states[:2] == [True, False])
    await link.close()
    assert not any(states[1:])


async def test_damaged_and_oversized_tokenizers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget()
    target.tokenizer_files = replace(TOKENIZER_FILES, tokenizer_json=b"{")
    async with serving(target) as port, linking(port) as link:
        await until(lambda: "damaged" in link.problem)
        target.tokenizer_files = TOKENIZER_FILES
        monkeypatch.setattr(target_module, "MAX_TOKENIZER_BYTES", 100)
        await until(lambda: "larger than 100 bytes" in link.problem)
        monkeypatch.undo()
        assert await link.available(5)


async def test_waits_for_a_target_that_is_loading() -> None:
    target = FakeTarget()
    target.is_loading = True
    async with serving(target) as port, linking(port) as link:
        await until(lambda: "loading" in link.problem)
        target.is_loading = False
        assert await link.available(5)


async def test_opens_verifies_and_closes() -> None:
    target = FakeTarget()
    expected = plain_continuation(PROMPT, 8)
    async with linked(target) as link:
        sequence = opened(link)
        committed = CommittedTokens(PROMPT, 320, 100)
        first = (await opening_of(sequence)).first
        committed.extend(committed.outcome(EMPTY_WINDOW, first))
        # B03: the first draft token is judged too. Right, right, wrong.
        window = Window([*expected[1:3], expected[3] + 1])
        verdict = await verified(sequence, 1, len(committed), committed.checksum, window)
        assert list(verdict.accepted_nodes) == [0, 1]
        committed.extend(committed.outcome(window, verdict))
        window = Window([expected[4] + 1])
        verdict = await verified(sequence, 2, len(committed), committed.checksum, window)
        assert list(verdict.accepted_nodes) == []
        committed.extend(committed.outcome(window, verdict))
        assert committed.token_ids == PROMPT + expected[:5]
        assert len(target.sequences) == link.num_sequences == 1
        sequence.close()
        sequence.close()
        assert link.num_sequences == 0
        await until(lambda: not target.sequences)
    assert not target.refusals


async def test_tenants_have_salts_of_their_own_which_do_not_tell_them() -> None:
    target = FakeTarget()
    tenants = (b"", b"a" * 32, b"b" * 32, b"a" * 32)
    async with linked(target) as link:
        for tenant in tenants:
            await opening_of(link.open(secrets.token_bytes(16), 1, 0, replace(OPENING, tenant=tenant), PROMPT))
    salts = [command.open.cache_salt for command in target.commands if command.HasField("open")]
    assert salts[0] == b""
    assert salts[1] == salts[3]
    assert len(set(salts)) == 3
    assert {len(salt) for salt in salts[1:]} == {16}
    assert not any(tenant[:16] in salt for tenant, salt in zip(tenants[1:], salts[1:], strict=True))


async def test_sequences_of_one_moment_travel_in_one_message() -> None:
    target = FakeTarget()
    async with linked(target) as link:
        sequences = [opened(link) for _ in range(64)]

        async def run(sequence: TargetSequence) -> None:
            committed = CommittedTokens(PROMPT, 320, 100)
            committed.extend(committed.outcome(EMPTY_WINDOW, (await opening_of(sequence)).first))
            for round_index in range(1, 11):
                verdict = await verified(sequence, round_index, len(committed), committed.checksum, EMPTY_WINDOW)
                committed.extend(committed.outcome(EMPTY_WINDOW, verdict))

        await asyncio.gather(*map(run, sequences))
    assert sum(target.batch_sizes) == 64 * 11
    assert len(target.batch_sizes) <= 3 * 11


async def test_answers_that_nobody_waits_for_are_dropped_and_counted() -> None:
    """B32: repeated answers, older rounds, older epochs, unknown sequences."""
    target = FakeTarget()

    def with_strays(_: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        older = target_pb2.TargetEvent()
        older.CopyFrom(event)
        older.epoch -= 1
        other_round = target_pb2.TargetEvent()
        other_round.CopyFrom(event)
        other_round.round += 1
        unknown = target_pb2.TargetEvent()
        unknown.CopyFrom(event)
        unknown.sequence_id = bytes(16)
        older_failure = target_pb2.TargetEvent(sequence_id=event.sequence_id, epoch=event.epoch - 1)
        older_failure.failed.code = 9
        return [older, other_round, unknown, older_failure, event, event]

    target.change = with_strays
    counting = Counting()
    async with linked(target, counting) as link:
        sequence = opened(link)
        committed = CommittedTokens(PROMPT, 320, 100)
        committed.extend(committed.outcome(EMPTY_WINDOW, (await opening_of(sequence)).first))
        verdict = await verified(sequence, 1, len(committed), committed.checksum, EMPTY_WINDOW)
        committed.extend(committed.outcome(EMPTY_WINDOW, verdict))
        assert committed.token_ids == PROMPT + plain_continuation(PROMPT, 2)
        await until(lambda: counting.by_attribute(names.STALE_EVENTS) == {"target": 10})


async def test_a_late_answer_is_turned_away() -> None:
    target = FakeTarget()
    target.delay_seconds = 0.1
    counting = Counting()
    async with linked(target, counting) as link:
        sequence = opened(link)
        with pytest.raises(AnswerOverdue):
            await opening_of(sequence, 0.02)
        await until(lambda: counting.total(names.STALE_EVENTS) == 1)
        with pytest.raises(AnswerOverdue):
            await opening_of(sequence, 0.02)


async def test_a_refusal_ends_its_sequence_and_no_other() -> None:
    target = FakeTarget()
    async with linked(target) as link:
        sequence, other = opened(link), opened(link)
        await opening_of(sequence)
        await opening_of(other)
        with pytest.raises(FailedPreconditionError):
            await verified(sequence, 1, 4, 0, EMPTY_WINDOW)
        token_ids = [*PROMPT, table_token(PROMPT)]
        committed = CommittedTokens(token_ids, 320, 100)
        await verified(other, 1, 4, committed.checksum, EMPTY_WINDOW)
        with pytest.raises(InvalidArgumentError):
            await verified(
                other, 2, 5, CommittedTokens([*token_ids, table_token(token_ids)], 320, 100).checksum, Window([9] * 17)
            )


@pytest.mark.parametrize("crash", [True, False])
async def test_when_the_stream_breaks_every_waiter_learns_it_at_once_and_the_link_comes_back(crash: bool) -> None:
    target = FakeTarget()
    async with serving(target) as port:
        link = TargetLink(f"127.0.0.1:{port}", COUNTING.metrics, lambda: None)
        link.start()
        assert await link.available(5)
        tokenizer = link.tokenizer
        target.is_frozen = True
        sequences = [opened(link) for _ in range(3)]
        waiting = [asyncio.create_task(opening_of(sequence, 30)) for sequence in sequences]
        await until(lambda: len(target.commands) == 3)
        if not crash:
            target.break_streams()
            outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 2)
    if crash:
        outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 2)
        await until(lambda: not link.is_available)
    try:
        assert all(isinstance(outcome, LinkLost) for outcome in outcomes)
        assert link.num_sequences == 0
        for sequence in sequences:
            sequence.close()
        target.is_frozen = False
        if crash:
            async with serving(target, port):
                assert await link.available(5)
                await opening_of(opened(link))
                assert link.tokenizer is tokenizer
    finally:
        await link.close()


async def test_closing_the_link_releases_waiters() -> None:
    target = FakeTarget()
    target.is_frozen = True
    async with linked(target) as link:
        waiting = asyncio.create_task(opening_of(opened(link), 30))
        await asyncio.sleep(0.02)
        await link.close()
        with pytest.raises(LinkLost):
            await asyncio.wait_for(waiting, 2)

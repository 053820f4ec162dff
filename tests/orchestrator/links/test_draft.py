"""The link to the draft service."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orchestrator.links.draft import DraftLink, DraftSequence
from orchestrator.links.mailbox import LinkLost
from orchestrator.links.opening import Opening
from orchestrator.links.target import TargetLink
from orchestrator.window_sizes import WindowSizes
from specdec.checksum import prefix_checksum
from specdec.errors import FailedPreconditionError
from specdec.features import MAX_BYTES
from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2
from tests.orchestrator.counting import Counting
from tests.orchestrator.fakes import TOKENIZER_HASH, FakeDraft, FakeTarget
from tests.orchestrator.serving import serving, until
from tests.orchestrator.table import half_right

PROMPT = [5, 6, 7]
OPENING = Opening(len(PROMPT), SamplingParams().to_proto(), model_pb2.ACCEPTANCE_RULE_COUPLED, 100)
COUPLED, BLOCK = model_pb2.ACCEPTANCE_RULE_COUPLED, model_pb2.ACCEPTANCE_RULE_BLOCK


@asynccontextmanager
async def linked(draft: FakeDraft) -> AsyncIterator[DraftLink]:
    metrics = Counting().metrics
    async with serving(FakeTarget()) as target_port, serving(draft) as port:
        target_link = TargetLink(f"127.0.0.1:{target_port}", metrics, lambda: None)
        link = DraftLink(f"127.0.0.1:{port}", target_link, metrics, lambda: None)
        target_link.start()
        link.start()
        try:
            assert await target_link.available(5)
            assert await link.available(5)
            yield link
        finally:
            await link.close()
            await target_link.close()


def opened(link: DraftLink, num_draft_tokens: int) -> DraftSequence:
    return link.open(secrets.token_bytes(16), 1, 1, OPENING, PROMPT, WindowSizes(num_draft_tokens, num_draft_tokens))


async def test_proposes_at_open_and_after_a_commit() -> None:
    draft = FakeDraft()
    async with linked(draft) as link:
        sequence = opened(link, 2)
        proposal = await sequence.proposal(5)
        first = half_right(PROMPT)
        assert list(proposal.token_ids) == [first, half_right([*PROMPT, first])]
        sequence.commit(2, 3, list(range(1)), 9, prefix_checksum([*PROMPT, first, 9]), WindowSizes(1, 1))
        proposal = await sequence.proposal(5)
        assert (proposal.base_length, list(proposal.token_ids)) == (5, [half_right([*PROMPT, first, 9])])
        sequence.close()
        sequence.close()
        await until(lambda: not draft.sequences)
    assert not draft.refusals


async def test_what_was_held_is_told_with_the_next_commit_and_no_more_features_than_a_message_takes() -> None:
    draft = FakeDraft()
    async with linked(draft) as link:
        sequence = opened(link, 0)
        known = list(PROMPT)
        for token_id in (9, 10, 11, 12):
            known.append(token_id)
            features = bytes(MAX_BYTES // 2)
            sequence.hold(len(known), len(known) - 1, token_id, prefix_checksum(known), features)
        sequence.commit(9, 7, [], 13, prefix_checksum([*known, 13]), WindowSizes(1, 1))
        assert (await sequence.proposal(5)).base_length == 8
        sequence.commit(10, 8, [], 14, prefix_checksum([*known, 13, 14]), WindowSizes(1, 1))
        assert (await sequence.proposal(5)).base_length == 9
    told = [command.commit for command in draft.commands if command.HasField("commit")]
    assert [commit.next_token_id for commit in told] == [9, 10, 11, 12, 13, 14]
    assert [len(commit.features) for commit in told] == [0, 0, MAX_BYTES // 2, MAX_BYTES // 2, 0, 0]
    assert not draft.refusals


async def test_a_commit_that_is_out_of_step_is_refused_and_ends_the_sequence() -> None:
    async with linked(FakeDraft()) as link:
        sequence = opened(link, 0)
        sequence.commit(2, 3, list(range(0)), 9, 0, WindowSizes(1, 1))
        with pytest.raises(FailedPreconditionError):
            await sequence.proposal(5)
        with pytest.raises(FailedPreconditionError):
            sequence.commit(3, 4, list(range(0)), 9, 0, WindowSizes(1, 1))


async def test_a_commit_on_a_stream_that_broke_says_so() -> None:
    draft = FakeDraft()
    async with linked(draft) as link:
        sequence = opened(link, 0)
        await until(lambda: bool(draft.sequences))
        draft.break_streams()
        await until(lambda: not link.is_available)
        with pytest.raises(LinkLost):
            sequence.commit(2, 3, list(range(0)), 9, 0, WindowSizes(1, 1))
        assert await link.available(5)
        with pytest.raises(LinkLost):
            sequence.commit(2, 3, list(range(0)), 9, 0, WindowSizes(1, 1))


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"tokenizer_hash": "abcd"}, ["'abcd'", TOKENIZER_HASH]),
        ({"vocab_size": 300}, ["300", "320"]),
        ({"tokenizer_hash": "", "vocab_size": 0}, []),
        ({}, []),
    ],
)
async def test_a_drafter_of_another_vocabulary_is_named_with_both_values(
    facts: dict[str, Any], named: list[str]
) -> None:
    async with linked(FakeDraft(**facts)) as link:
        assert all(value in link.mismatch for value in named)
        assert bool(link.mismatch) == bool(named)
        assert link.suits(COUPLED) == (not named)
        assert not link.suits(BLOCK)


async def test_another_protocol_version_is_refused() -> None:
    async with serving(FakeDraft(protocol_version=2)) as port:
        metrics = Counting().metrics
        target_link = TargetLink("127.0.0.1:1", metrics, lambda: None)
        link = DraftLink(f"127.0.0.1:{port}", target_link, metrics, lambda: None)
        link.start()
        try:
            await until(lambda: "protocol version 2" in link.problem)
            assert not link.is_available
        finally:
            await link.close()

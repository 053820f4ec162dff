"""Continuations that are told before their outcome is known: what a commit of that outcome would be answered with."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest

from draft_service.drafters.combined import CombinedDrafter
from draft_service.drafters.suffix_lookup import SuffixLookup
from draft_service.drafters.tenant_memory import TenantMemory
from specdec.sampling.params import SamplingParams
from specdec.v1 import draft_pb2, model_pb2
from tests.draft_service.ahead.driving import AheadClient, ahead_engine, fresh
from tests.draft_service.driving import Client, Engine, ModelEngine
from tests.plain_decoding import GREEDY, SAMPLED

PROMPT = (5, 9, 200)
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


class CandidateClient(AheadClient):
    """Wants to be told."""

    max_candidates = 16
    num_ahead_tokens = 0
    is_candidate = False

    def commit_command(self, num_accepted: int, next_token: int, num_draft_tokens: int) -> draft_pb2.DraftCommand:
        command = super().commit_command(num_accepted, next_token, num_draft_tokens)
        command.commit.max_candidates = self.max_candidates
        command.commit.num_ahead_tokens = self.num_ahead_tokens
        command.commit.is_candidate = self.is_candidate
        return command

    def told(
        self, num_accepted: int, next_token: int, count: int
    ) -> tuple[draft_pb2.Proposal, list[draft_pb2.Candidate]]:
        """Commit, and take the proposal and the continuations of it."""
        command = self.commit_command(num_accepted, next_token, count)
        first, *others = self.engine.ask(self.connection, command)
        proposal = self.take(first, count)
        assert len(others) <= 1
        for event in others:
            assert (event.epoch, event.round) == (self.epoch, self.round)
            assert event.candidates.base_length == len(self.token_ids)
        return proposal, [each for event in others for each in event.candidates.candidates]


def following(client: Client, candidate: draft_pb2.Candidate) -> Client:
    """Somebody who knows that this outcome came true, and nothing else."""
    count = candidate.num_accepted_tokens
    tokens = [*client.token_ids, *client.proposed[:count], candidate.next_token_id]
    other = Client(ModelEngine(), tokens, client.params, rule=client.rule)
    other.prompt_length = client.prompt_length
    return other


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_candidate_is_what_would_be_proposed_after_its_outcome(params: SamplingParams) -> None:
    client = CandidateClient(ahead_engine(), PROMPT, params)
    client.open(4)
    _, candidates = client.told(0, 17, 4)
    assert len(candidates) > 3
    outcomes = [(each.num_accepted_tokens, each.next_token_id) for each in candidates]
    assert len(set(outcomes)) == len(outcomes)
    assert {count for count, _ in outcomes} > {0, 4}
    for candidate in candidates:
        # What begins behind the window's last token begins a pass later, and nobody waits for it.
        count = 3 if candidate.num_accepted_tokens == 4 else 4
        assert list(candidate.token_ids) == list(fresh(following(client, candidate), count).token_ids)


def test_a_commit_of_a_candidate_is_answered_with_it_and_the_next_ones_are_told() -> None:
    engine = ahead_engine()
    client = CandidateClient(engine, PROMPT, SAMPLED)
    client.open(4)
    _, candidates = client.told(0, 17, 4)
    client.is_candidate = True
    for _ in range(5):
        chosen = candidates[-1]
        proposal, candidates = client.told(chosen.num_accepted_tokens, chosen.next_token_id, len(chosen.token_ids))
        assert proposal.ahead == draft_pb2.AHEAD_OUTCOME_HIT
        assert list(proposal.token_ids) == list(chosen.token_ids)
        assert candidates


def test_continuations_may_be_longer_than_the_proposal() -> None:
    client = CandidateClient(ahead_engine(), PROMPT, GREEDY)
    client.open(4)
    client.num_ahead_tokens = 6
    proposal, candidates = client.told(0, 17, 2)
    assert len(proposal.token_ids) == 2
    assert {len(each.token_ids) for each in candidates} == {5, 6}


def test_no_more_are_told_than_are_wanted() -> None:
    client = CandidateClient(ahead_engine(), PROMPT, GREEDY)
    client.open(4)
    _, everything = client.told(0, 17, 4)
    client.max_candidates = 2
    assert len(everything) > 2
    assert len(client.told(0, 18, 4)[1]) == 2
    client.max_candidates = 0
    assert client.told(0, 19, 4)[1] == []


def test_they_are_told_once_and_only_when_all_are_made() -> None:
    engine = ahead_engine()
    client = CandidateClient(engine, PROMPT, GREEDY)
    client.open(4)
    engine.tell(client.connection, client.commit_command(0, 17, 4))
    while not client.connection.batches:
        engine.engine.step()
    client.connection.take()
    num_passes = len(engine.runner.passes)
    while not client.connection.batches:
        assert engine.engine.step()
    assert len(engine.runner.passes) == num_passes + 4
    client.connection.take()
    engine.work()
    assert client.connection.take() == []


def test_a_commit_before_they_are_made_is_not_followed_by_them() -> None:
    engine = ahead_engine()
    client = CandidateClient(engine, PROMPT, GREEDY)
    client.open(4)
    engine.tell(client.connection, client.commit_command(0, 17, 4))
    while not client.connection.batches:
        engine.engine.step()
    client.take(client.connection.take()[0], 4)
    engine.engine.step()
    proposal, candidates = client.told(0, 301, 4)
    assert list(proposal.token_ids) == list(fresh(client, 4).token_ids)
    assert candidates


def test_what_the_target_is_judging_is_never_looked_up() -> None:
    engine = ahead_engine()
    lookup = SuffixLookup(TenantMemory(max_tokens=0, max_tenants=1), min_match_length=2, tokens_per_match=2.0)
    client = CandidateClient(Engine(CombinedDrafter(engine.drafter, lookup, model_cost=100.0)), [7, 8, 9] * 8, GREEDY)
    client.open(4)
    sources = []
    for client.is_candidate in (False, True):
        sources.append(client.told(0, 7, 4)[0].source == draft_pb2.DRAFT_SOURCE_MODEL)
    assert sources == [False, True]


Change = Callable[[draft_pb2.DraftCommit], object]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda commit: setattr(commit, "max_candidates", 17), "max_candidates"),
        (lambda commit: setattr(commit, "num_ahead_tokens", 9), "num_ahead_tokens"),
    ],
)
def test_too_much_is_refused(change: Change, reason: str) -> None:
    client = CandidateClient(ahead_engine(), PROMPT, GREEDY)
    client.open(4)
    command = client.commit_command(0, 17, 4)
    change(command.commit)
    (event,) = client.engine.ask(client.connection, command)
    assert event.failed.code == INVALID
    assert reason in event.failed.message


@pytest.mark.parametrize("rule", [model_pb2.ACCEPTANCE_RULE_REJECTION, model_pb2.ACCEPTANCE_RULE_BLOCK])
def test_rules_that_hang_on_the_draft_have_none_but_at_temperature_0(
    rule: model_pb2.AcceptanceRule.ValueType,
) -> None:
    client = CandidateClient(ahead_engine(), PROMPT, SAMPLED, rule=rule)
    client.open(4)
    (event,) = client.engine.ask(client.connection, client.commit_command(0, 17, 4))
    assert event.failed.code == INVALID
    greedy = CandidateClient(ahead_engine(), PROMPT, GREEDY, rule=rule)
    greedy.open(4)
    assert greedy.told(0, 17, 4)[1]

"""Drafting ahead against drafting when asked: the same proposals, in any order of what happens."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from draft_service.drafters.combined import CombinedDrafter
from draft_service.drafters.suffix_lookup import SuffixLookup
from draft_service.drafters.tenant_memory import TenantMemory
from specdec.sampling.params import SamplingParams
from specdec.v1 import draft_pb2, model_pb2
from tests.draft_service.ahead.driving import AheadClient, ahead_engine, assert_same, fresh, guesses, likely_outcome
from tests.draft_service.driving import Client, Engine
from tests.plain_decoding import GREEDY, SAMPLED

HIT, MISS = draft_pb2.AHEAD_OUTCOME_HIT, draft_pb2.AHEAD_OUTCOME_MISS
PROMPT = (5, 9, 200)
PENALTIES = SamplingParams(temperature=0.0, frequency_penalty=1.0, no_repeat_ngram_size=2)
PARAMS = pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALTIES], ids=["greedy", "sampled", "penalties"])
RULES = pytest.mark.parametrize(
    "rule", [model_pb2.ACCEPTANCE_RULE_COUPLED, model_pb2.ACCEPTANCE_RULE_REJECTION, model_pb2.ACCEPTANCE_RULE_BLOCK]
)


@PARAMS
@RULES
def test_proposals_are_those_drafted_when_asked_after_hits_and_misses(
    params: SamplingParams, rule: model_pb2.AcceptanceRule.ValueType
) -> None:
    generator = random.Random(1)
    client = AheadClient(ahead_engine(), PROMPT, params, rule=rule)
    client.open(4)
    outcomes: Counter[int] = Counter()
    for _ in range(40):
        count = generator.choice([2, 4, 4, 6])
        found = client.commit(*likely_outcome(client, generator), count)
        assert_same(found, fresh(client, count))
        assert found.num_ahead_tokens == 0 or found.ahead == HIT
        outcomes[found.ahead] += 1
    assert outcomes[HIT] > 10
    assert outcomes[MISS] > 3


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_hit_needs_no_pass_and_a_shorter_one_only_the_rest(params: SamplingParams) -> None:
    engine = ahead_engine()
    client = AheadClient(engine, PROMPT, params)
    client.open(4)
    client.commit(0, 17, 4)
    for count, num_ahead in ((4, 4), (2, 2), (5, 2), (5, 5)):
        outcome = guesses(client)[0]
        engine.runner.passes.clear()
        engine.tell(client.connection, client.commit_command(*outcome, count))
        while not client.connection.batches:
            engine.engine.step()
        assert len(engine.runner.passes) == count - num_ahead
        assert max(map(max, engine.runner.passes), default=1) == 1
        (event,) = client.connection.take()
        found = client.take(event, count)
        assert (found.ahead, found.num_ahead_tokens) == (HIT, num_ahead)
        assert_same(found, fresh(client, count))
        assert found.timings.compute_microseconds == 0 or count > num_ahead
        assert found.timings.step_microseconds > 0
        engine.work()


def test_a_drafter_with_the_targets_weights_hits_in_every_round() -> None:
    client = AheadClient(ahead_engine(), PROMPT, SAMPLED)
    client.open(3)
    found = client.commit(0, 17, 3)
    for _ in range(8):
        bonus = fresh(client, 4).token_ids[3]
        found = client.commit(3, bonus, 3)
        assert found.ahead == HIT
        assert_same(found, fresh(client, 3))


def test_nothing_is_drafted_ahead_unless_it_is_asked_for() -> None:
    engine = ahead_engine()
    client = Client(engine, PROMPT, SAMPLED)
    client.open(4)
    engine.runner.passes.clear()
    found = client.commit(4, 17, 4)
    assert found.ahead == draft_pb2.AHEAD_OUTCOME_UNSPECIFIED
    assert len(engine.runner.passes) == 4


def test_a_service_may_be_told_never_to() -> None:
    engine = ahead_engine(ahead_rows=0)
    client = AheadClient(engine, PROMPT, SAMPLED)
    client.open(4)
    engine.runner.passes.clear()
    for accepted in (4, 2):
        assert client.commit(accepted, 17, 4).ahead == draft_pb2.AHEAD_OUTCOME_UNSPECIFIED
    assert len(engine.runner.passes) == 8


@RULES
def test_many_sequences_with_cancels_closes_and_new_epochs(rule: model_pb2.AcceptanceRule.ValueType) -> None:
    generator = random.Random(5)
    engine = ahead_engine(max_num_draft_tokens=6)
    clients = [
        AheadClient(engine, [place, *range(20, 20 + 5 * place)], (GREEDY, SAMPLED)[place % 2], rule=rule)
        for place in range(1, 5)
    ]
    num_hits = 0
    for client in clients:
        client.open(3)
    for _ in range(60):
        client = generator.choice(clients)
        chance = generator.random()
        if chance < 0.1:
            client.close()
            client.token_ids = client.token_ids[: client.prompt_length]
            client.open(3)
        elif chance < 0.2:
            # As after a loss: the next epoch, from the truth.
            assert_same(client.open(3), fresh(client, 3))
        elif chance < 0.35:
            # Only noted; what was drafted ahead for it stays unused.
            assert engine.ask(client.connection, client.commit_command(*likely_outcome(client, generator), 0)) == []
        elif chance < 0.5:
            # The orchestrator goes on without the proposal that it has asked for.
            engine.tell(client.connection, client.commit_command(*likely_outcome(client, generator), 4))
            for _ in range(generator.randint(0, 3)):
                engine.engine.step()
            if not client.connection.take():
                client.proposed = []
                assert_same(client.commit(0, 33, 3), fresh(client, 3))
            else:
                assert_same(client.open(3), fresh(client, 3))
        else:
            found = client.commit(*likely_outcome(client, generator), 3)
            assert_same(found, fresh(client, 3))
            num_hits += found.ahead == HIT
            # Sometimes the verdict is there before everything is drafted.
            for _ in range(generator.randint(0, 4)):
                engine.engine.step()
    assert num_hits > 5
    for client in clients:
        client.close()
    assert engine.memory.pool.blocks.num_used == 0
    assert not engine.drafter.may_work_ahead


def test_the_verdict_may_come_at_any_time_while_it_is_drafted_ahead() -> None:
    for num_steps in range(12):
        engine = ahead_engine()
        client = AheadClient(engine, PROMPT, SAMPLED)
        client.open(3)
        engine.tell(client.connection, client.commit_command(1, 17, 3))
        while not client.connection.batches:
            engine.engine.step()
        (event,) = client.connection.take()
        client.take(event, 3)
        for _ in range(num_steps):
            engine.engine.step()
        outcome = (guesses(client) or [(2, 40)])[-1]
        assert_same(client.commit(*outcome, 4), fresh(client, 4))


@pytest.mark.parametrize("threshold", [0.004, 0.02])
def test_windows_that_end_early_end_at_the_same_place(threshold: float) -> None:
    generator = random.Random(2)
    client = AheadClient(ahead_engine(confidence_threshold=threshold), PROMPT, SAMPLED)
    client.open(6)
    lengths, num_hits = Counter[int](), 0
    for _ in range(30):
        found = client.commit(*likely_outcome(client, generator), 6)
        assert_same(found, fresh(client, 6, confidence_threshold=threshold))
        lengths[len(found.token_ids)] += 1
        num_hits += found.ahead == HIT
    assert len(lengths) > 1
    assert num_hits > 3


def test_no_draft_ahead_beyond_the_context() -> None:
    client = AheadClient(ahead_engine(max_context_length=32), [7] * 20, SAMPLED)
    client.open(4)
    generator = random.Random(4)
    while len(client.token_ids) < 34:
        found = client.commit(*likely_outcome(client, generator), 4)
        assert_same(found, fresh(client, 4, max_context_length=32))


def test_with_lookup_the_model_drafts_ahead_for_its_own_windows_only() -> None:
    engine = ahead_engine()
    lookup = SuffixLookup(TenantMemory(max_tokens=0, max_tenants=1), min_match_length=2, tokens_per_match=2.0)
    combined = Engine(CombinedDrafter(engine.drafter, lookup, model_cost=1.1))
    generator = random.Random(6)
    client = AheadClient(combined, [3, 4, 5, 6] * 3, GREEDY)
    client.open(3)
    sources: Counter[int] = Counter()
    num_hits = 0
    for step in range(60):
        # The text goes round for a while, then it is the model's.
        following = [3 + (client.token_ids[-1] - 2 + place) % 4 for place in range(4)]
        text = following if step % 20 < 10 else list(fresh(client, 4).token_ids)
        accepted = next((i for i, each in enumerate(client.proposed) if each != text[i]), len(client.proposed))
        found = client.commit(accepted, text[accepted] if step % 7 else generator.randrange(300), 3)
        sources[found.source] += 1
        num_hits += found.ahead == HIT
        if found.source == draft_pb2.DRAFT_SOURCE_MODEL:
            assert_same(found, fresh(client, 3))
        else:
            assert found.ahead == draft_pb2.AHEAD_OUTCOME_UNSPECIFIED
    assert min(sources[draft_pb2.DRAFT_SOURCE_MODEL], sources[draft_pb2.DRAFT_SOURCE_SUFFIX]) > 3
    assert num_hits > 3


def test_a_window_that_is_a_tree_is_made_when_it_is_asked_for() -> None:
    def with_steps(client: Client, command: draft_pb2.DraftCommand) -> draft_pb2.Proposal:
        command.commit.max_draft_steps = 2
        (event,) = client.engine.ask(client.connection, command)
        return client.take(event, 6)

    ahead, plain = AheadClient(ahead_engine(), PROMPT, SAMPLED), Client(ahead_engine(), PROMPT, SAMPLED)
    for client in (ahead, plain):
        client.open(4)
        client.commit(0, 17, 4)
    for place in (0, 1, 2):
        outcome = guesses(ahead)[place]
        found = [with_steps(client, client.commit_command(*outcome, 6)) for client in (ahead, plain)]
        assert list(found[0].token_ids) == list(found[1].token_ids)
        assert list(found[0].parents) == list(found[1].parents) != []
        # Behind a tree: one of its runners-up is not in the cache.
        for client in (ahead, plain):
            client.proposed = client.proposed[:1]
        assert_same(ahead.commit(1, 40 + place, 4), plain.commit(1, 40 + place, 4))

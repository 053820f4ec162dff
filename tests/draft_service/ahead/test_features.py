"""Drafting ahead with a draft that reads features: from guesses, and what was made of guesses is made again."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
import torch

from draft_service.ahead.budget import AheadBudget
from draft_service.drafters.combined import CombinedDrafter
from draft_service.drafters.suffix_lookup import SuffixLookup
from draft_service.drafters.tenant_memory import TenantMemory
from specdec.sampling.params import SamplingParams
from specdec.v1 import draft_pb2
from tests.draft_service.ahead.driving import AheadClient, guesses, likely_outcome
from tests.draft_service.driving import MAX_STEPS, Client, Engine
from tests.draft_service.feature_drafts import FeatureEngine, SlowDraft, random_features, wire
from tests.plain_decoding import GREEDY, SAMPLED

HIT, MISS = draft_pb2.AHEAD_OUTCOME_HIT, draft_pb2.AHEAD_OUTCOME_MISS
PROMPT = [(11 * place + 5) % 300 for place in range(37)]
BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


def ahead_engine(ahead_rows: int = 16) -> FeatureEngine:
    engine = FeatureEngine()
    engine.drafter.ahead_budget = AheadBudget(ahead_rows, itertools.count(0.0, 3600.0).__next__)
    return engine


class Pair:
    """A client, and what its drafts should be with what was known when they were made."""

    def __init__(self, engine: Engine, params: SamplingParams, prompt: list[int] = PROMPT) -> None:
        self.client = AheadClient(engine, prompt, params)
        self.slow = SlowDraft(self.client)
        self.states = torch.empty((0, 1, 32), dtype=torch.bfloat16)
        """Of all tokens but the last, as the target told them."""

    def begin(self, count: int = 4) -> None:
        assert self.client.engine.ask(self.client.connection, self.client.open_command(0)) == []
        self.commit(0, 77, count)

    def commit(
        self,
        num_accepted: int,
        next_token: int,
        count: int,
        *,
        is_silent: bool = False,
        num_steps: int = MAX_STEPS,
    ) -> draft_pb2.Proposal:
        """A round, of which the target tells all states, or none; then so many passes ahead, at most."""
        ahead: list[int] = []
        if (num_accepted, next_token) in guesses(self.client):
            ahead = self.slow.drafts(8, [*self.client.proposed[:num_accepted], next_token])
        rows = list(self.slow.rows)
        length = len(self.client.token_ids) - (1 if self.client.round else 0)
        num_told = num_accepted + 1 if self.client.round else length
        told = random_features(0 if is_silent else num_told, self.client.round)
        self.client.features = wire(told)
        engine, connection = self.client.engine, self.client.connection
        engine.tell(connection, self.client.commit_command(num_accepted, next_token, count))
        while not connection.batches:
            engine.engine.step()
        (event,) = connection.take()
        found = self.client.take(event, count)
        self.slow.take(told, num_accepted)
        if found.ahead == HIT and is_silent:
            # Nothing is known that would make it better.
            self.slow.rows = rows[: len(self.client.token_ids)]
        self.states = torch.cat([self.states, told])
        num_ahead = found.num_ahead_tokens
        assert list(found.token_ids[:num_ahead]) == ahead[:num_ahead]
        rest = self.slow.drafts(count - num_ahead, found.token_ids[:num_ahead])
        assert list(found.token_ids[num_ahead:]) == rest
        for _ in range(num_steps):
            if not engine.engine.step():
                break
        return found


def cached(client: Client, num_rows: int) -> list[torch.Tensor]:
    """Keys and values of the first tokens, of every layer."""
    engine = client.engine
    sequence = engine.engine._sequences[client.connection][client.sequence_id]
    assert isinstance(engine, FeatureEngine)
    cache = engine.drafter._states[id(sequence)].cache
    assert cache.length >= num_rows
    spans = cache.spans(num_rows)
    return [part.clone() for layer in range(2) for part in cache.pool.storage.read(layer, spans)]


@BOTH
@pytest.mark.parametrize("rows", [1, 3, 16, 64])
def test_a_hit_is_what_would_be_drafted_of_guesses_and_the_rest_of_all_that_is_known(
    params: SamplingParams, rows: int
) -> None:
    generator = random.Random(rows)
    pair = Pair(ahead_engine(rows), params)
    pair.begin()
    outcomes: Counter[int] = Counter()
    for _ in range(40):
        count = generator.choice([2, 4, 4, 6])
        found = pair.commit(*likely_outcome(pair.client, generator), count)
        outcomes[found.ahead] += 1
        assert (found.num_ahead_tokens > 0) == (found.ahead == HIT)
    assert outcomes[HIT] > 10
    assert outcomes[MISS] > 3


@BOTH
def test_after_hits_the_cache_is_made_again_of_the_targets_states(params: SamplingParams) -> None:
    pair = Pair(ahead_engine(), params)
    client = pair.client
    pair.begin()
    for place in range(8):
        assert pair.commit(*guesses(client)[place % 3], 4).ahead == HIT
        # Somebody who has never drafted anything of this, with all that the target has told.
        num_committed = len(client.token_ids)
        other = Client(FeatureEngine(), client.token_ids[:-1], params)
        other.engine.ask(other.connection, other.open_command(0))
        other.features = wire(pair.states)
        other.commit(0, client.token_ids[-1], 1)
        # The token before the first that is proposed is a guess.
        for ours, theirs in zip(cached(client, num_committed), cached(other, num_committed), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_hit_needs_no_pass_and_the_next_one_ahead_makes_up_for_it() -> None:
    engine = ahead_engine(64)
    pair = Pair(engine, GREEDY)
    pair.begin()
    client = pair.client
    for num_accepted in (1, 3, 0):
        outcome = next(each for each in guesses(client) if each[0] == num_accepted)
        engine.runner.passes.clear()
        client.features = wire(random_features(num_accepted + 1, num_accepted))
        engine.tell(client.connection, client.commit_command(*outcome, 4))
        engine.engine.step()
        (event,) = client.connection.take()
        assert event.proposal.ahead == HIT
        assert event.proposal.num_ahead_tokens == 4
        assert engine.runner.passes == []
        client.take(event, 4)
        engine.work()
        # The last committed token of the round before, those accepted, the next one, and four drafted ones.
        assert engine.runner.passes[0][0] > num_accepted + 2 + 4
        assert all(rows[0] <= 12 for rows in engine.runner.passes[1:])


def test_a_hit_shorter_than_what_is_wanted_takes_a_pass_for_each_further_token() -> None:
    engine = ahead_engine()
    pair = Pair(engine, SAMPLED)
    pair.begin()
    pair.commit(*guesses(pair.client)[0], 2)
    outcome = guesses(pair.client)[0]
    engine.runner.passes.clear()
    engine.tell(pair.client.connection, pair.client.commit_command(*outcome, 5))
    while not pair.client.connection.batches:
        engine.engine.step()
    assert len(engine.runner.passes) == 3


@BOTH
def test_verdicts_that_come_at_once_and_tell_nothing(params: SamplingParams) -> None:
    """Hits whose states nobody tells go on from guesses, until there is something to know."""
    generator = random.Random(3)
    pair = Pair(ahead_engine(), params)
    pair.begin()
    num_hits = 0
    for step in range(30):
        outcome = likely_outcome(pair.client, generator)
        found = pair.commit(*outcome, 4, is_silent=step % 3 == 1)
        num_hits += found.ahead == HIT
    assert num_hits > 10


def test_the_verdict_may_come_at_any_time() -> None:
    for num_steps in range(9):
        pair = Pair(ahead_engine(), SAMPLED)
        pair.begin()
        for step in range(6):
            known = guesses(pair.client)
            outcome = known[step % len(known)] if known else (step % 3, 9)
            pair.commit(*outcome, 4, num_steps=num_steps)


def test_many_sequences_share_their_passes() -> None:
    generator = random.Random(6)
    engine = ahead_engine(24)
    pairs = [Pair(engine, (GREEDY, SAMPLED)[place % 2], [place, *PROMPT[: 5 * place + 1]]) for place in range(4)]
    for pair in pairs:
        pair.begin()
    num_hits = 0
    for _ in range(60):
        pair = generator.choice(pairs)
        found = pair.commit(*likely_outcome(pair.client, generator), 4, num_steps=generator.randint(0, 4))
        num_hits += found.ahead == HIT
    assert num_hits > 10
    assert max(map(len, engine.runner.passes)) == 4
    for pair in pairs:
        pair.client.close()
    assert engine.memory.pool.blocks.num_used == 0
    assert not engine.drafter.may_work_ahead


def test_with_lookup_the_model_drafts_ahead_for_its_own_windows_only() -> None:
    engine = ahead_engine()
    lookup = SuffixLookup(TenantMemory(max_tokens=0, max_tenants=1), min_match_length=2, tokens_per_match=2.0)
    client = AheadClient(Engine(CombinedDrafter(engine.drafter, lookup, model_cost=1.1)), [3, 4, 5, 6] * 3, GREEDY)
    assert client.engine.ask(client.connection, client.open_command(0)) == []
    sources: Counter[int] = Counter()
    num_hits = 0
    for step in range(80):
        # The text goes round for a while, then it is what the model has guessed.
        following = [3 + (client.token_ids[-1] - 2 + place) % 4 for place in range(4)]
        known = guesses(client, engine)
        if step % 20 < 8:
            right = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(client.proposed, following, strict=False))
            accepted = len(list(right))
            outcome = accepted, following[accepted]
        else:
            outcome = known[step % len(known)] if known else (0, 20 + step)
        client.features = wire(random_features(outcome[0] + 1, step))
        found = client.commit(*outcome, 3)
        sources[found.source] += 1
        num_hits += found.ahead == HIT
        assert found.source == draft_pb2.DRAFT_SOURCE_MODEL or found.ahead == draft_pb2.AHEAD_OUTCOME_UNSPECIFIED
    assert min(sources[draft_pb2.DRAFT_SOURCE_MODEL], sources[draft_pb2.DRAFT_SOURCE_SUFFIX]) > 3
    assert num_hits > 3

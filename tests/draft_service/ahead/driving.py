"""A draft engine that drafts ahead, and what it should propose."""

from __future__ import annotations

import itertools
import random

import pytest

from draft_service.ahead.budget import AheadBudget
from specdec.engine.memory import CacheMemory
from specdec.v1 import draft_pb2
from tests.draft_service.driving import Client, Engine, ModelEngine
from tests.draft_service.feature_drafts import FeatureEngine


class AheadClient(Client):
    """Asks for drafting ahead with every commit."""

    def commit_command(self, num_accepted: int, next_token: int, num_draft_tokens: int) -> draft_pb2.DraftCommand:
        command = super().commit_command(num_accepted, next_token, num_draft_tokens)
        command.commit.draft_ahead = True
        return command


def ahead_engine(memory: CacheMemory | None = None, *, ahead_rows: int = 16, **limits: float) -> ModelEngine:
    engine = ModelEngine(memory=memory, **limits)  # type: ignore[arg-type]
    # Hours go by between passes, so that nothing depends on how fast this machine is.
    engine.drafter.ahead_budget = AheadBudget(ahead_rows, itertools.count(0.0, 3600.0).__next__)
    return engine


def fresh(client: Client, count: int, **limits: float) -> draft_pb2.Proposal:
    """What a service proposes that knows nothing but the truth."""
    other = Client(ModelEngine(**limits), client.token_ids, client.params, rule=client.rule)  # type: ignore[arg-type]
    other.prompt_length = client.prompt_length
    return other.open(count)


def assert_same(found: draft_pb2.Proposal, expected: draft_pb2.Proposal) -> None:
    assert list(found.token_ids) == list(expected.token_ids)
    assert len(found.distributions) == len(expected.distributions)
    for ours, theirs in zip(found.distributions, expected.distributions, strict=True):
        assert list(ours.token_ids) == list(theirs.token_ids)
        assert list(ours.weights) == pytest.approx(list(theirs.weights), abs=2)


def guesses(client: Client, engine: Engine | None = None) -> list[tuple[int, int]]:
    """Outcomes that are drafted ahead for, as (accepted, next token); `engine` is that of the model, if another."""
    model = engine or client.engine
    assert isinstance(model, (ModelEngine, FeatureEngine))
    sequence = client.engine.engine._sequences[client.connection][client.sequence_id]
    waiting = model.drafter._ahead._waiting.get(id(sequence))
    if waiting is None or waiting.tree is None:
        return []
    branches = waiting.tree._branches.values()
    return [(branch.num_accepted, branch.next_token_id) for branch in branches if branch and branch.token_ids]


def likely_outcome(client: Client, generator: random.Random) -> tuple[int, int]:
    """One that was drafted for, or any."""
    known = guesses(client)
    if known and generator.random() < 0.7:
        return generator.choice(known)
    return generator.randint(0, len(client.proposed)), generator.randrange(300)

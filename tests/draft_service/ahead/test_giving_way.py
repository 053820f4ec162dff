"""Whoever drafts ahead stands in nobody's way: not with time, not with memory, not when something fails."""

from __future__ import annotations

import random

import pytest
import torch

from draft_service.ahead.budget import AheadBudget
from specdec.engine.memory import CacheMemory
from specdec.runner.pool import KVPool
from specdec.runner.runner import Work
from specdec.v1 import draft_pb2
from tests.draft_service.ahead.driving import AheadClient, ahead_engine, assert_same, fresh
from tests.draft_service.driving import Client
from tests.plain_decoding import GREEDY, SAMPLED

PROMPT = (5, 9, 200)


def test_proposals_that_are_asked_for_come_first() -> None:
    engine = ahead_engine()
    waiting, asking = AheadClient(engine, PROMPT, SAMPLED), Client(engine, (7, 8), SAMPLED)
    waiting.open(4)
    asking.open(3)
    engine.tell(waiting.connection, waiting.commit_command(1, 17, 2))
    while not waiting.connection.batches:
        engine.engine.step()
    engine.engine.step()
    engine.runner.passes.clear()
    # In the middle of drafting ahead.
    engine.tell(asking.connection, asking.commit_command(0, 9, 3))
    while not asking.connection.batches:
        engine.engine.step()
    assert engine.runner.passes == [[1], [1], [1]]


def test_continuations_of_all_that_wait_share_their_passes_and_their_rows() -> None:
    engine = ahead_engine(ahead_rows=6)
    clients = [AheadClient(engine, (7 + place, 8), SAMPLED) for place in range(3)]
    for client in clients:
        client.open(3)
    for client in clients:
        engine.tell(client.connection, client.commit_command(0, 9, 3))
    while not all(client.connection.batches for client in clients):
        engine.engine.step()
    engine.runner.passes.clear()
    engine.work()
    assert engine.runner.passes[:3] == [[2, 2, 2]] * 3
    assert all(sum(rows) <= 6 for rows in engine.runner.passes)


def test_a_busy_drafter_withdraws() -> None:
    engine = ahead_engine()
    clock = [0.0]
    budget = engine.drafter.ahead_budget = AheadBudget(16, lambda: clock[0])
    clients = [AheadClient(engine, (7 + place, 8), SAMPLED) for place in range(4)]
    for client in clients:
        client.open(3)
    for _ in range(500):
        clock[0] += 0.01
        budget.worked(0.009)
    for client in clients:
        engine.runner.passes.clear()
        client.commit(0, 9, 3)
        assert engine.runner.passes == [[1], [1], [1]]
    clock[0] += 10.0
    engine.runner.passes.clear()
    clients[0].commit(0, 9, 3)
    assert len(engine.runner.passes) > 3


@pytest.mark.parametrize("num_blocks", [5, 6, 8, 10])
def test_with_hardly_any_memory_nobody_loses_a_draft_token_to_it(num_blocks: int) -> None:
    # The same commands with and without drafting ahead: the proposals are the same, and so is what is lost.
    drafted = []
    for kind in (Client, AheadClient):
        generator = random.Random(3)
        engine = ahead_engine(CacheMemory(KVPool(num_blocks), overcommit=6.0), max_num_draft_tokens=4)
        clients = [kind(engine, [place, *range(30, 30 + 10 * place)], GREEDY, max_length=70) for place in range(3)]
        found = []
        for client in clients:
            client.open(3)
        for _ in range(30):
            for client in clients:
                accepted = min(generator.randint(0, 3), len(client.proposed))
                # Half of the time the draft's own next token, which drafting ahead has guessed.
                text = fresh(client, accepted + 1).token_ids
                token = text[accepted] if generator.random() < 0.5 else generator.randrange(300)
                found.append(list(client.commit(accepted, token, 3).token_ids))
        for client in clients:
            client.close()
        assert engine.memory.pool.blocks.num_used == 0
        drafted.append((found, engine.memory.num_preemptions))
    assert drafted[1] == drafted[0]


def test_no_blocks_stay_taken_by_continuations_that_are_over() -> None:
    engine = ahead_engine(CacheMemory(KVPool(12)), max_num_draft_tokens=4)
    client = AheadClient(engine, PROMPT, GREEDY, max_length=60)
    client.open(4)
    client.commit(0, 17, 4)
    assert engine.memory.pool.blocks.num_used > 1
    engine.drafter._ahead.give_way()
    assert engine.memory.pool.blocks.num_used == 1
    assert_same(client.commit(2, 18, 4), fresh(client, 4))


def test_a_continuation_without_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ahead_engine()
    client = AheadClient(engine, PROMPT, SAMPLED)
    client.open(3)
    forward = engine.runner.forward

    def forward_badly(batch: list[Work]) -> list[torch.Tensor]:
        return [
            torch.full_like(piece, torch.nan) if work.parents else piece
            for work, piece in zip(batch, forward(batch), strict=True)
        ]

    monkeypatch.setattr(engine.runner, "forward", forward_badly)
    for accepted in (1, 2, 3):
        assert_same(client.commit(accepted, 17, 3), fresh(client, 3))


def test_a_pass_that_fails_costs_nobody_anything() -> None:
    engine = ahead_engine()
    client = AheadClient(engine, PROMPT, SAMPLED)
    client.open(3)
    engine.tell(client.connection, client.commit_command(1, 17, 3))
    while not client.connection.batches:
        engine.engine.step()
    (event,) = client.connection.take()
    client.take(event, 3)
    engine.runner.problem = MemoryError("no more")
    engine.work()
    engine.runner.problem = None
    assert client.connection.take() == []
    found = client.commit(2, 18, 3)
    assert found.ahead == draft_pb2.AHEAD_OUTCOME_UNSPECIFIED
    assert_same(found, fresh(client, 3))


def test_no_more_is_drafted_ahead_than_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ahead_engine()
    clock = [0.0]
    budget = engine.drafter.ahead_budget = AheadBudget(16, lambda: clock[0])
    client = AheadClient(engine, PROMPT, SAMPLED)
    client.open(4)

    # Those of this machine say nothing here: a pass takes 8 seconds, and 2 for each row.
    budget.times.observe(1, 10.0)
    budget.times.observe(9, 26.0)
    monkeypatch.setattr(budget.times, "observe", lambda *_: None)

    def widest(verdict_seconds: float) -> int:
        """Rows of the largest pass, once verdicts take so long."""
        for step in range(41):
            clock[0] += verdict_seconds
            engine.runner.passes.clear()
            client.commit(step % 5, 17, 4)
        return max(max(rows) for rows in engine.runner.passes)

    assert widest(5.0) == 1
    some = widest(52.0)
    assert 1 < some < widest(1000.0)

"""The drafter's key-value memory: shared by prefix within a tenant, lost and computed again, never in a text's way."""

from __future__ import annotations

import random

import grpc
import pytest

from specdec.engine.memory import CacheMemory
from specdec.errors import from_status
from specdec.runner.pool import KVPool
from tests.draft_service.driving import Client, DraftConnection, ModelEngine
from tests.plain_decoding import GREEDY, SAMPLED, plain_text

PROMPT = tuple(range(2, 42))
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


def small_engine(num_blocks: int, overcommit: float = 1.0) -> ModelEngine:
    return ModelEngine(memory=CacheMemory(KVPool(num_blocks), overcommit=overcommit), max_num_draft_tokens=4)


def expected(client: Client, count: int) -> list[int]:
    """What the drafter guesses next, with a cache of its own."""
    assert isinstance(client.engine, ModelEngine)
    length = len(client.token_ids)
    return plain_text(client.engine.model, client.token_ids, client.params, length + count)[length:]


def test_completions_of_one_prompt_prefill_it_once() -> None:
    engine = ModelEngine()
    connection = DraftConnection()
    clients = [Client(engine, PROMPT, SAMPLED, connection=connection) for _ in range(3)]
    for client in clients:
        engine.tell(connection, client.open_command(2))
    engine.work()
    assert engine.runner.passes == [[40], [1, 1, 1], [1, 1]]
    events = {event.sequence_id: event for event in connection.take()}
    for client in clients:
        assert list(client.take(events[client.sequence_id], 2).token_ids) == expected(client, 2)


def test_the_next_turn_finds_what_the_last_one_committed_and_no_draft_tokens() -> None:
    engine = ModelEngine()
    first = Client(engine, PROMPT, GREEDY)
    first.open(4)
    for _ in range(6):
        # The drafts are rejected, so their rows must not be what the next turn finds.
        first.commit(0, (first.proposed[0] + 1) % 320, 4)
    first.close()
    assert engine.memory.pool.blocks.num_used == 0
    engine.runner.passes.clear()
    second = Client(engine, [*first.token_ids, 7, 8], GREEDY)
    assert list(second.open(4).token_ids) == expected(second, 4)
    # 46 tokens are two full blocks and a rest that is computed again.
    assert engine.runner.passes == [[16], [1], [1], [1]]


def test_tenants_share_among_themselves() -> None:
    engine = ModelEngine()
    rows = []
    for tenant in (b"", b"a" * 32, b"b" * 32, b"a" * 32, b""):
        engine.runner.passes.clear()
        client = Client(engine, PROMPT, GREEDY, tenant=tenant)
        assert list(client.open(1).token_ids) == expected(client, 1)
        client.close()
        rows.append(list(engine.runner.passes))
    assert rows == [[[40]], [[40]], [[40]], [[1]], [[1]]]


def test_drafts_under_pressure_are_right_or_missing() -> None:
    generator = random.Random(3)
    engine = small_engine(10, overcommit=6.0)
    clients = [
        Client(engine, [place, *PROMPT[: 10 * place]], SAMPLED if place % 2 else GREEDY, max_length=90)
        for place in range(5)
    ]
    num_drafted = num_missing = 0
    for client in clients:
        engine.tell(client.connection, client.open_command(3))
    for _ in range(25):
        engine.work()
        for client in clients:
            (event,) = client.connection.take()
            proposal = list(client.take(event, 3).token_ids)
            assert proposal == expected(client, 3)[: len(proposal)]
            num_drafted += len(proposal)
            num_missing += 3 - len(proposal)
            engine.tell(client.connection, client.commit_command(generator.randint(0, len(proposal)), 9, 3))
        if generator.random() < 0.2:
            client = generator.choice(clients)
            engine.tell(client.connection, client.close_command())
            client.token_ids = client.token_ids[: client.prompt_length]
            engine.tell(client.connection, client.open_command(3))
    engine.work()
    assert engine.memory.num_preemptions > 0
    assert num_drafted > 200
    assert num_missing > 0
    for client in clients:
        client.close()
    assert engine.memory.pool.blocks.num_used == 0


@pytest.mark.parametrize(("max_length", "num_taken"), [(0, 3), (60, 2), (150, 1), (4000, 1)])
def test_a_sequence_for_which_there_is_no_memory_is_refused(max_length: int, num_taken: int) -> None:
    engine = small_engine(11)
    clients = [Client(engine, PROMPT, GREEDY, max_length=max_length) for _ in range(num_taken + 1)]
    for client in clients[:-1]:
        client.open(1)
    code, message = clients[-1].refused(clients[-1].open_command(1))
    assert (code, "the key-value memory is promised" in message) == (EXHAUSTED, True)
    engine.tell(clients[-1].connection, clients[-1].open_command(1))
    (event,) = clients[-1].connection.take()
    assert from_status(event.failed).retry_seconds
    clients[0].close()
    assert list(clients[-1].open(1).token_ids) == expected(clients[-1], 1)

"""A pool that is too small for all who want it: they wait, lose their caches, are refused, and each text is its own."""

from __future__ import annotations

import random

import grpc
import pytest

from specdec.engine.memory import CacheMemory
from specdec.errors import from_status
from specdec.runner.pool import KVPool
from specdec.sampling.params import SamplingParams
from specdec.v1 import target_pb2
from tests.plain_decoding import GREEDY, SAMPLED
from tests.target_service.driving import Client, Target, TargetConnection, generate

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


def small_target(num_blocks: int, *, overcommit: float = 1.0, max_num_queued: int = 0) -> Target:
    """A pool of blocks of 16 tokens; windows have up to 4 draft tokens."""
    memory = CacheMemory(KVPool(num_blocks), overcommit=overcommit, max_num_queued=max_num_queued)
    return Target(max_num_draft_tokens=4, max_batch_rows=48, memory=memory)


def alone(client: Client) -> list[int]:
    prompt = client.token_ids[: client.prompt_length]
    return generate(Client(Target(), prompt, client.params, max_length=client.max_length))


def answered(client: Client, command: target_pb2.TargetCommand) -> bool:
    """Take an answer if there is one."""
    events = client.connection.take()
    for event in events:
        client.commit(event, command)
    return bool(events)


@pytest.mark.parametrize("overcommit", [1.0, 4.0])
def test_every_text_under_pressure_and_cancels_is_that_of_the_request_alone(overcommit: float) -> None:
    generator = random.Random(int(overcommit))
    target = small_target(12, overcommit=overcommit, max_num_queued=16)
    clients = []
    for place in range(12):
        prompt = [generator.randrange(320) for _ in range(generator.randrange(1, 60))]
        params = (GREEDY, SAMPLED, SamplingParams(temperature=0.8, top_p=0.9, seed=place))[place % 3]
        clients.append(Client(target, prompt, params, max_length=len(prompt) + generator.randrange(5, 40)))
    texts = {id(client): alone(client) for client in clients}
    asked = {}
    for client in clients:
        asked[id(client)] = client.open_command()
        target.tell(client.connection, asked[id(client)])
    cancelled = clients[3::5]
    running = list(clients)
    for step in range(2000):
        target.engine.step()
        for client in list(running):
            if not answered(client, asked[id(client)]):
                continue
            if len(client.token_ids) >= client.max_length or (client in cancelled and step > 20):
                target.tell(client.connection, client.close_command())
                running.remove(client)
                continue
            rest = texts[id(client)][len(client.token_ids) :]
            asked[id(client)] = client.window_command([*rest[: generator.randrange(4)], generator.randrange(320)])
            target.tell(client.connection, asked[id(client)])
        if not running:
            break
    assert not running
    for client in clients:
        assert client.token_ids == texts[id(client)][: len(client.token_ids)]
        assert client in cancelled or len(client.token_ids) == client.max_length
    assert (target.memory.num_preemptions > 0) == (overcommit > 1)
    assert target.memory.pool.blocks.num_used == 0


def test_a_sequence_waits_for_memory_and_starts_when_another_ends() -> None:
    target = small_target(8, max_num_queued=1)
    first = Client(target, [5, 6], GREEDY, max_length=100)
    second = Client(target, [7, 8], GREEDY, max_length=100)
    first.open()
    opening = second.open_command()
    target.tell(second.connection, opening)
    assert not target.engine.step()
    assert not second.connection.batches
    while len(first.token_ids) < 20:
        first.verify([1])
    target.tell(first.connection, first.close_command())
    target.work()
    assert answered(second, opening)
    while len(second.token_ids) < 100:
        second.verify([1])
    assert second.token_ids == alone(second)


def test_beyond_the_queue_a_sequence_is_refused_with_a_time_to_try_again() -> None:
    target = small_target(8, max_num_queued=1)
    clients = [Client(target, [5, 6], GREEDY, max_length=100) for _ in range(3)]
    clients[0].open()
    target.tell(clients[1].connection, clients[1].open_command())
    code, message = clients[2].refused(clients[2].open_command())
    assert code == EXHAUSTED
    assert message == "the key-value memory is promised to 1 sequences, and 1 more wait; try again later"
    target.tell(clients[2].connection, clients[2].open_command())
    (event,) = clients[2].connection.take()
    assert 0 < (from_status(event.failed).retry_seconds or 0) < 60
    # Who waited goes away: there is a place in the queue again.
    target.tell(clients[1].connection, clients[1].close_command())
    target.tell(clients[2].connection, clients[2].open_command())
    assert not clients[2].connection.batches
    assert target.memory.num_queued == 1


def test_all_that_a_stream_held_is_free_when_it_ends() -> None:
    target = small_target(12, overcommit=4.0, max_num_queued=4)
    connection = TargetConnection()
    clients = [Client(target, [place, 6], SAMPLED, max_length=150, connection=connection) for place in range(8)]
    for client in clients:
        target.tell(connection, client.open_command())
    target.engine.step()
    target.tell(connection, None)
    assert (target.memory.pool.blocks.num_used, target.memory.num_queued, target.engine.num_sequences) == (0, 0, 0)
    again = Client(target, [9, 9], GREEDY, max_length=40)
    assert generate(again) == alone(again)


def test_who_waits_for_an_idle_elder_costs_no_passes_and_goes_on_when_it_ends() -> None:
    target = small_target(8, overcommit=2.0)
    elder = Client(target, list(range(2, 100)), GREEDY, max_length=120)
    young = Client(target, list(range(100, 150)), GREEDY, max_length=60)
    elder.open()
    target.tell(young.connection, opening := young.open_command())
    target.runner.passes.clear()
    assert not target.engine.step()
    assert target.runner.passes == []
    target.tell(elder.connection, elder.close_command())
    target.work()
    assert answered(young, opening)
    assert target.runner.passes == [[48], [2]]


def test_a_long_prompt_among_running_sequences_is_prefilled_in_small_chunks_and_they_go_on() -> None:
    target = Target(max_batch_rows=64, max_context_length=400, prefill_chunk_rows=6, memory=CacheMemory(KVPool(64)))
    running = [Client(target, [place, 7], SAMPLED, max_length=200) for place in range(3)]
    for client in running:
        client.open()
    long = Client(target, [place % 300 for place in range(200)], SAMPLED, max_length=210)
    target.tell(long.connection, opening := long.open_command())
    target.runner.passes.clear()
    while not answered(long, opening):
        commands = [client.window_command() for client in running]
        for client, command in zip(running, commands, strict=True):
            target.tell(client.connection, command)
        target.engine.step()
        for client, command in zip(running, commands, strict=True):
            assert answered(client, command)
    assert target.runner.passes == [[1, 1, 1, 6]] * 33 + [[1, 1, 1, 2]]
    # With nobody else there, prompts take whole passes.
    for client in running:
        target.tell(client.connection, client.close_command())
    target.tell(long.connection, long.close_command())
    target.runner.passes.clear()
    Client(target, [3] * 150, SAMPLED, max_length=160).open()
    assert target.runner.passes == [[64], [64], [22]]

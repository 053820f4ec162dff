"""What one sequence computed serves others with the same tokens: completions of a prompt, the next turn, any stream."""

from __future__ import annotations

import random

import pytest

from specdec.checksum import prefix_checksum
from specdec.engine.memory import CacheMemory
from specdec.runner.pool import KVPool
from specdec.sampling.params import SamplingParams
from specdec.v1 import target_pb2
from tests.plain_decoding import GREEDY, SAMPLED
from tests.target_service.driving import Client, Target, TargetConnection, generate

PROMPT = list(range(2, 42))
LENGTH = 60
INVALID_ARGUMENT = 3


def completions(target: Target, count: int, connection: TargetConnection | None = None) -> list[Client]:
    """Sequences of one stream that differ in their seeds only."""
    connection = connection or TargetConnection()
    return [
        Client(target, PROMPT, SamplingParams(seed=9).for_completion(index), max_length=LENGTH, connection=connection)
        for index in range(count)
    ]


def alone(client: Client) -> list[int]:
    prompt = client.token_ids[: client.prompt_length]
    return generate(Client(Target(), prompt, client.params, max_length=client.max_length))


def answers(client: Client) -> dict[bytes, target_pb2.TargetEvent]:
    return {event.sequence_id: event for event in client.connection.take()}


def finish(client: Client) -> list[int]:
    while len(client.token_ids) < client.max_length:
        client.verify([1, 2])
    return client.token_ids


def open_and_count(client: Client) -> int:
    """Open, and say how many tokens were found."""
    command = client.open_command()
    (event,) = client.target.ask(client.connection, command)
    client.commit(event, command)
    return event.opened.num_cached_tokens


def close(client: Client) -> None:
    client.target.tell(client.connection, client.close_command())


@pytest.mark.parametrize("max_batch_rows", [17, 64])
def test_completions_that_are_opened_together_are_prefilled_once(max_batch_rows: int) -> None:
    target = Target(max_batch_rows=max_batch_rows)
    clients = completions(target, 3)
    commands = [client.open_command() for client in clients]
    target.tell(clients[0].connection, *commands)
    target.work()
    assert sum(map(sum, target.runner.passes)) == len(PROMPT) + 2
    events = answers(clients[0])
    for client, command in zip(clients, commands, strict=True):
        client.commit(events[client.sequence_id], command)
    cached = [events[client.sequence_id].opened.num_cached_tokens for client in clients]
    assert cached == [0, len(PROMPT) - 1, len(PROMPT) - 1]
    # 40 tokens are two full blocks, held once, and a rest, which each goes on with in a block of its own.
    assert target.memory.pool.blocks.num_used == 2 + 3
    texts = [finish(client) for client in clients]
    assert texts == [alone(client) for client in clients]
    assert len(set(map(tuple, texts))) == 3


def test_one_whose_first_goes_away_takes_over_what_there_is() -> None:
    target = Target(max_batch_rows=17)
    first, second, third = completions(target, 3)
    commands = [client.open_command() for client in (first, second, third)]
    target.tell(first.connection, *commands)
    target.engine.step()
    target.tell(first.connection, first.close_command())
    target.work()
    assert target.runner.passes == [[17], [17], [7], [1]]
    events = answers(first)
    assert set(events) == {second.sequence_id, third.sequence_id}
    for client, command, num_cached in zip((second, third), commands[1:], (16, 39), strict=True):
        client.commit(events[client.sequence_id], command)
        assert events[client.sequence_id].opened.num_cached_tokens == num_cached
        assert finish(client) == alone(client)


def test_prompts_that_begin_alike_and_come_together_compute_the_beginning_once() -> None:
    target = Target(max_batch_rows=200)
    one = Client(target, PROMPT, SAMPLED, max_length=LENGTH)
    other = Client(target, [*PROMPT[:35], 100, 101], SAMPLED, max_length=LENGTH)
    commands = one.open_command(), other.open_command()
    for client, command in zip((one, other), commands, strict=True):
        target.tell(client.connection, command)
    target.work()
    assert target.runner.passes == [[40], [5]]
    for client, command in zip((one, other), commands, strict=True):
        (event,) = client.connection.take()
        client.commit(event, command)
        assert finish(client) == alone(client)


def test_the_next_turn_of_a_chat_finds_all_full_blocks_of_the_last_one() -> None:
    target = Target(max_batch_rows=200)
    first = Client(target, PROMPT, SAMPLED, max_length=LENGTH)
    assert open_and_count(first) == 0
    text = finish(first)
    close(first)
    assert target.memory.pool.blocks.num_used == 0
    target.runner.passes.clear()
    second = Client(target, [*text, 7, 8, 9], SAMPLED, max_length=90)
    # 59 of the 60 tokens were run.
    assert open_and_count(second) == 48
    assert target.runner.passes == [[15]]
    assert finish(second) == alone(second)


def test_a_sequence_that_is_opened_again_finds_what_it_had() -> None:
    target = Target()
    client = Client(target, PROMPT, SAMPLED, max_length=LENGTH)
    client.open()
    while len(client.token_ids) < 50:
        client.verify([3])
    client.round += 1
    assert open_and_count(client) == 48
    assert finish(client) == alone(client)


def test_another_stream_shares_and_another_salt_does_not() -> None:
    target = Target(max_batch_rows=200)
    counts = []
    for salt in (b"", b"", b"tenant a", b"tenant b", b"tenant a"):
        client = Client(target, PROMPT, GREEDY, max_length=LENGTH, cache_salt=salt)
        counts.append(open_and_count(client))
        assert finish(client) == alone(client)
    assert counts == [0, 39, 0, 0, 39]


def test_a_salt_has_a_limit() -> None:
    client = Client(Target(), PROMPT, cache_salt=b"x" * 65)
    assert client.refused(client.open_command()) == (
        INVALID_ARGUMENT,
        "cache_salt has 65 bytes; at most 64 are taken",
    )


def test_an_equal_checksum_is_not_taken_for_equal_tokens() -> None:
    target = Target()
    connection = TargetConnection()
    prompts = [180, 246, 173, 72], [230, 142, 62, 180]
    assert prefix_checksum(prompts[0]) == prefix_checksum(prompts[1])
    for prompt in prompts:
        target.tell(connection, Client(target, prompt, connection=connection).open_command())
    target.work()
    assert target.runner.passes == [[4, 4]]


def test_a_prompt_of_one_token_leaves_nothing_to_share() -> None:
    target = Target()
    connection = TargetConnection()
    clients = [Client(target, [7], SamplingParams(seed=seed), max_length=9, connection=connection) for seed in (1, 2)]
    commands = [client.open_command() for client in clients]
    target.tell(connection, *commands)
    target.work()
    events = answers(clients[0])
    for client, command in zip(clients, commands, strict=True):
        assert events[client.sequence_id].opened.num_cached_tokens == 0
        client.commit(events[client.sequence_id], command)
        while len(client.token_ids) < 9:
            client.verify()
        assert client.token_ids == generate(Client(Target(), [7], client.params, max_length=9))


def test_chats_of_many_turns_in_a_pool_that_holds_few_of_them() -> None:
    # Prefixes are found, evicted, written again and shared all the time; each text is as in an engine of its own.
    generator = random.Random(5)
    target = Target(memory=CacheMemory(KVPool(14)), max_num_draft_tokens=4)
    chats = [list(PROMPT[: generator.randrange(5, 30)]) for _ in range(4)]
    num_cached = 0
    for _ in range(30):
        chat = generator.choice(chats)
        if len(chat) > 100:
            del chat[40:]
        client = Client(target, chat, SAMPLED, max_length=len(chat) + generator.randrange(2, 12))
        num_cached += open_and_count(client)
        assert finish(client) == alone(client)
        close(client)
        chat[:] = [*client.token_ids, generator.randrange(300)]
    assert num_cached > 300
    assert target.memory.pool.blocks.num_evictions > 20
    assert target.memory.pool.blocks.num_used == 0

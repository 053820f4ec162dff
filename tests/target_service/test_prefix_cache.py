"""Completions of one prompt that are opened together are prefilled once, and are otherwise like any other sequences."""

from __future__ import annotations

import pytest

from specdec.checksum import prefix_checksum
from specdec.sampling.params import SamplingParams
from specdec.v1 import target_pb2
from tests.plain_decoding import GREEDY
from tests.target_service.driving import Client, Target, TargetConnection, generate

PROMPT = list(range(2, 42))
LENGTH = 60


def completions(target: Target, count: int, connection: TargetConnection | None = None) -> list[Client]:
    """Sequences of one stream that differ in their seeds only."""
    connection = connection or TargetConnection()
    return [
        Client(target, PROMPT, SamplingParams(seed=9).for_completion(index), max_length=LENGTH, connection=connection)
        for index in range(count)
    ]


def alone(client: Client) -> list[int]:
    return generate(Client(Target(), PROMPT, client.params, max_length=LENGTH))


def answers(client: Client) -> dict[bytes, target_pb2.TargetEvent]:
    return {event.sequence_id: event for event in client.connection.take()}


def finish(client: Client) -> list[int]:
    while len(client.token_ids) < LENGTH:
        client.verify([1, 2])
    return client.token_ids


@pytest.mark.parametrize("max_batch_rows", [17, 64])
def test_the_prompt_is_run_once(max_batch_rows: int) -> None:
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
    assert target.runner.passes[:2] == [[17], [17]]
    events = answers(first)
    assert set(events) == {second.sequence_id, third.sequence_id}
    for client, command in zip((second, third), commands[1:], strict=True):
        client.commit(events[client.sequence_id], command)
        assert events[client.sequence_id].opened.num_cached_tokens == 17
        assert finish(client) == alone(client)


def test_nothing_is_shared_between_streams_or_with_another_prompt() -> None:
    target = Target(max_batch_rows=200)
    mine, other_stream = completions(target, 1)[0], completions(target, 1)[0]
    other_prompt = Client(target, [*PROMPT[:-1], 1], GREEDY, max_length=LENGTH, connection=mine.connection)
    for client in (mine, other_stream, other_prompt):
        target.tell(client.connection, client.open_command())
    target.work()
    assert target.runner.passes == [[len(PROMPT)] * 3]


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

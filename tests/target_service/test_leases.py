"""B33: a sequence that its orchestrator has left alone gives up its memory, and is opened again if it is wanted."""

from __future__ import annotations

import time
from collections.abc import Sequence

import grpc
import torch

from specdec.engine.memory import CacheMemory
from specdec.runner.pool import KVPool
from specdec.runner.runner import Work
from tests.target_service.driving import Client, Target, generate

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]
LEASE_SECONDS = 0.05
PROMPT = [5, 9, 200]


def until_idle_leases_are_over() -> None:
    time.sleep(1.5 * LEASE_SECONDS)


def test_a_sequence_left_alone_is_closed_told_and_opened_again_with_the_same_text() -> None:
    target = Target(lease_seconds=LEASE_SECONDS)
    client = Client(target, PROMPT)
    client.open()
    client.verify([1, 2])
    until_idle_leases_are_over()
    assert not target.engine.step()
    (event,) = client.connection.take()
    assert (event.sequence_id, event.epoch, event.failed.code) == (client.sequence_id, client.epoch, PRECONDITION)
    assert event.failed.message == "the sequence was left alone for 0.05 s, which ends its lease; open it again"
    assert target.engine.num_sequences == 0
    assert target.memory.num_admitted == 0
    assert target.memory.pool.blocks.num_used == 0
    # Late, the orchestrator asks all the same.
    code, message = client.refused(client.window_command())
    assert (code, "not open on this stream" in message) == (PRECONDITION, True)
    client.open()
    assert client.token_ids == generate(Client(Target(), PROMPT))[: len(client.token_ids)]


def test_each_command_renews_the_lease_and_so_does_the_answer() -> None:
    target = Target(lease_seconds=0.3)
    busy, idle = Client(target, PROMPT), Client(target, PROMPT)
    busy.open()
    idle.open()
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        busy.verify([1])
        time.sleep(0.02)
        if target.engine.num_sequences == 1:
            break
    assert target.engine.num_sequences == 1
    busy.verify([1])
    (event,) = idle.connection.take()
    assert event.failed.code == PRECONDITION


def test_a_lease_begins_with_the_answer() -> None:
    target = Target(lease_seconds=10.0)
    now = [0.0]
    target.engine._leases._clock = lambda: now[0]
    client = Client(target, PROMPT)
    client.open()
    forward = target.runner.forward

    def long_pass(batch: Sequence[Work]) -> list[torch.Tensor]:
        now[0] = 9.0
        return forward(batch)

    target.runner.forward = long_pass  # type: ignore[method-assign]
    client.verify([1])
    for now[0], num_sequences in ((18.9, 1), (19.1, 0)):
        target.engine.step()
        assert target.engine.num_sequences == num_sequences


def test_asking_for_the_same_verdict_again_renews_it() -> None:
    target = Target(lease_seconds=0.3)
    client, idle = Client(target, PROMPT), Client(target, PROMPT)
    client.open()
    idle.open()
    command = client.window_command([1])
    (event,) = target.ask(client.connection, command)
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        assert target.ask(client.connection, command) == [event]
        time.sleep(0.02)
    assert target.engine.num_sequences == 1


def test_old_messages_do_not_renew_it() -> None:
    target = Target(lease_seconds=LEASE_SECONDS)
    client = Client(target, PROMPT)
    client.open()
    old = client.window_command()
    client.open()
    until_idle_leases_are_over()
    target.tell(client.connection, old)
    target.engine.step()
    assert target.engine.num_sequences == 0


def test_who_waits_for_memory_is_not_the_one_who_is_silent() -> None:
    target = Target(memory=CacheMemory(KVPool(4), max_num_queued=4), max_context_length=40, lease_seconds=LEASE_SECONDS)
    first, second = Client(target, PROMPT, max_length=40), Client(target, [7, 8], max_length=40)
    first.open()
    target.tell(second.connection, command := second.open_command())
    for _ in range(3):
        until_idle_leases_are_over()
        first.verify()
    assert second.connection.take() == []
    target.tell(first.connection, first.close_command())
    target.work()
    (event,) = second.connection.take()
    second.commit(event, command)


def test_what_is_closed_in_time_leaves_no_lease_behind() -> None:
    target = Target(lease_seconds=LEASE_SECONDS)
    clients = [Client(target, PROMPT) for _ in range(4)]
    for client in clients:
        client.open()
    target.tell(clients[0].connection, clients[0].close_command())
    for client in clients[1:]:
        target.tell(client.connection, None)
    assert len(target.engine._leases) == 0
    until_idle_leases_are_over()
    target.engine.step()
    assert all(client.connection.take() == [] for client in clients)

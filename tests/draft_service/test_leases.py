"""B33, at the draft service."""

from __future__ import annotations

import time

import grpc

from draft_service.drafters.ngram import NgramDrafter
from tests.draft_service.driving import Client, Engine, ModelEngine

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]
LEASE_SECONDS = 0.05


def test_a_sequence_left_alone_gives_up_its_memory_and_is_opened_again() -> None:
    engine = ModelEngine(lease_seconds=LEASE_SECONDS)
    client = Client(engine, [5, 9, 200])
    client.open(4)
    time.sleep(1.5 * LEASE_SECONDS)
    assert not engine.engine.step()
    (event,) = client.connection.take()
    assert (event.epoch, event.failed.code) == (1, PRECONDITION)
    assert "left alone" in event.failed.message
    assert engine.engine.num_sequences == len(engine.drafter._states) == 0
    assert engine.memory.pool.blocks.num_used == 0
    assert client.refused(client.commit_command(0, 7, 4))[0] == PRECONDITION
    client.open(4)


def test_commits_that_ask_for_nothing_renew_it() -> None:
    engine = Engine(
        NgramDrafter(min_length=1, max_length=2, max_num_draft_tokens=4, max_num_sequences=4), lease_seconds=0.3
    )
    client = Client(engine, [1, 2, 1])
    client.open(2)
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        engine.tell(client.connection, client.commit_command(0, 1, 0))
        engine.engine.step()
        time.sleep(0.02)
    assert engine.engine.num_sequences == 1
    assert client.connection.take() == []

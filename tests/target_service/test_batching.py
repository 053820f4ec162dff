"""Many sequences in one forward pass: as if each were alone, in no more passes than needed, and failing apart."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
import torch

from specdec.engine import gathering
from specdec.runner.runner import Work
from specdec.sampling.params import SamplingParams
from specdec.v1 import target_pb2
from tests.plain_decoding import GREEDY, SAMPLED
from tests.target_service.driving import Client, Target, TargetConnection, generate

LENGTH = 24
PROMPTS = [[5, 9, 200], [7], [11, 12, 13, 14, 15, 16], [300, 2]]


def some_clients(target: Target, *, connection: TargetConnection | None = None) -> list[Client]:
    return [
        Client(target, prompt, params, max_length=LENGTH, connection=connection)
        for prompt, params in zip(PROMPTS, (GREEDY, SAMPLED, SamplingParams(seed=3), GREEDY), strict=True)
    ]


def alone(client: Client) -> list[int]:
    return generate(
        Client(Target(), client.token_ids[: client.prompt_length], client.params, max_length=client.max_length)
    )


def other_than(token: int) -> int:
    return (token + 1) % 320


def run_together(
    target: Target, pairs: list[tuple[Client, target_pb2.TargetCommand]]
) -> list[tuple[Client, target_pb2.Verdict]]:
    for client, command in pairs:
        target.tell(client.connection, command)
    target.work()
    verdicts = []
    for client, command in pairs:
        (event,) = client.connection.take()
        verdicts.append((client, client.commit(event, command)))
    return verdicts


def test_everything_that_is_ready_is_one_pass_and_each_text_is_its_own() -> None:
    # B29: one sequence accepts all of its drafts, one none, one some, and one sends none.
    target = Target(max_batch_rows=64)
    clients = some_clients(target)
    texts = [alone(client) for client in clients]
    verdicts = run_together(target, [(client, client.open_command()) for client in clients])
    # A prompt of one token is no longer than a decoding step, and goes with those.
    assert target.runner.passes == [[1, 3, 6, 2]]
    assert {verdict.timings.batch_sequences for _, verdict in verdicts} == {4}
    assert {verdict.timings.batch_rows for _, verdict in verdicts} == {sum(map(len, PROMPTS))}
    while any(len(client.token_ids) < LENGTH for client in clients):
        target.runner.passes.clear()
        running = [
            (client, text) for client, text in zip(clients, texts, strict=True) if len(client.token_ids) < LENGTH
        ]
        pairs = []
        rows = []
        for client, text in running:
            drafts = text[len(client.token_ids) :][:3]
            kind = clients.index(client)
            if kind == 1:
                drafts = [other_than(token) for token in drafts]
            elif kind == 2:
                drafts = [*drafts[:1], *map(other_than, drafts[1:])]
            elif kind == 3:
                drafts = []
            rows.append(1 + min(len(drafts), LENGTH - len(client.token_ids) - 1))
            pairs.append((client, client.window_command(drafts)))
        run_together(target, pairs)
        assert target.runner.passes == [rows]
    assert [client.token_ids for client in clients] == texts
    assert [max(client.num_accepted[1:]) for client in clients] == [3, 0, 1, 0]


def test_answers_of_one_stream_travel_together() -> None:
    target = Target()
    connection = TargetConnection()
    clients = some_clients(target, connection=connection)
    target.tell(connection, *(client.open_command() for client in clients))
    target.work()
    (batch,) = connection.batches
    assert {event.sequence_id for event in batch} == {client.sequence_id for client in clients}


@pytest.mark.parametrize("max_batch_rows", [6, 7, 13])
def test_a_long_prompt_is_prefilled_in_chunks_while_others_go_on(max_batch_rows: int) -> None:
    target = Target(max_batch_rows=max_batch_rows, max_num_draft_tokens=5)
    prompt = [random.Random(0).randrange(320) for _ in range(50)]
    running = Client(target, [5, 9, 200], SAMPLED, max_length=80)
    text = alone(running)
    running.open()
    long = Client(target, prompt, SAMPLED, max_length=60)
    target.runner.passes.clear()
    open_long = long.open_command()
    target.tell(long.connection, open_long)
    opened: list[target_pb2.TargetEvent] = []
    passes = 0
    while not opened:
        # The running sequence gets its verdict in the very next pass, whatever the other still has to prefill.
        command = running.window_command(text[len(running.token_ids) :][:2])
        target.tell(running.connection, command)
        target.engine.step()
        passes += 1
        (event,) = running.connection.take()
        running.commit(event, command)
        opened = long.connection.take()
        assert passes < 30
    assert all(sum(rows) <= max_batch_rows for rows in target.runner.passes)
    assert sum(rows[-1] for rows in target.runner.passes) == 50
    assert len(target.runner.passes) == passes == -(-50 // (max_batch_rows - 3))
    assert [rows[0] for rows in target.runner.passes] == [3] * passes
    long.commit(opened[0], open_long)
    while len(long.token_ids) < 60:
        long.verify([1])
    assert long.token_ids == alone(long)
    assert running.token_ids == text[: len(running.token_ids)]


def test_the_time_of_all_chunks_counts() -> None:
    target = Target(max_batch_rows=17)
    client = Client(target, list(range(2, 52)), GREEDY)
    verdict = client.open()
    assert [sum(rows) for rows in target.runner.passes] == [17, 17, 16]
    assert verdict.timings.compute_microseconds > 0
    assert verdict.timings.batch_rows == 16
    assert verdict.timings.batch_sequences == 1


def test_closing_a_sequence_in_the_middle_of_its_prefill() -> None:
    target = Target(max_batch_rows=17)
    client = Client(target, list(range(2, 52)), GREEDY)
    target.tell(client.connection, client.open_command())
    assert target.engine.step()
    target.tell(client.connection, client.close_command())
    assert not target.engine.step()
    assert target.runner.passes == [[17]]
    assert target.engine.num_sequences == 0


def test_sequences_that_come_back_at_once_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever a busy machine does between two lines of this test.
    monkeypatch.setattr(gathering, "_MARGIN_SECONDS", 60.0)
    target = Target()
    forward = target.runner.forward

    def slow(batch: Sequence[Work]) -> list[torch.Tensor]:
        time.sleep(0.1)
        return forward(batch)

    target.runner.forward = slow  # type: ignore[method-assign]
    clients = some_clients(target)[:3]
    run_together(target, [(client, client.open_command()) for client in clients])
    assert target.engine.patience_seconds == 0.0, "nobody waits"
    for _ in range(2):
        run_together(target, [(client, client.window_command()) for client in clients])
    first, second, third = clients
    target.tell(first.connection, first.window_command())
    assert target.engine.patience_seconds > 0.0
    target.tell(second.connection, second.window_command())
    assert target.engine.patience_seconds > 0.0
    # The last one ends.
    target.tell(third.connection, third.close_command())
    assert target.engine.patience_seconds == 0.0

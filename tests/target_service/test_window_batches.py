"""Windows of many sequences in one command are judged as they would be in a command each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import grpc
import pytest

import target_service.engine
from orchestrator.links.window_batches import single_verdicts
from specdec.engine.memory import CacheMemory
from specdec.runner.pool import KVPool
from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2, target_pb2
from target_service.answer import batched
from target_service.asked import AskedWindow, read_window
from target_service.judge import DraftWindow
from tests.columns import in_columns
from tests.plain_decoding import SAMPLED, plain_text
from tests.target_service.driving import Client, Target, TargetConnection
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

PROMPTS = ((5, 9, 200), (7,), tuple(range(40, 60)), (5, 9, 201), (100, 3), (8, 8, 8, 8), (250, 1))
REJECTION = model_pb2.ACCEPTANCE_RULE_REJECTION
LOGPROBS = SamplingParams(temperature=0.0, num_logprobs=2)
INVALID, FAILED = grpc.StatusCode.INVALID_ARGUMENT.value[0], grpc.StatusCode.FAILED_PRECONDITION.value[0]
INTERNAL = grpc.StatusCode.INTERNAL.value[0]


def singles(events: Iterable[target_pb2.TargetEvent]) -> Iterator[target_pb2.TargetEvent]:
    for event in events:
        if event.HasField("verdicts"):
            yield from single_verdicts(event.verdicts)
        else:
            yield event


def timeless(events: Iterable[target_pb2.TargetEvent]) -> list[bytes]:
    """What they say but for times, in any order."""
    said = []
    for event in singles(events):
        assert event.WhichOneof("event") in {"verdict", "opened", "failed"}
        if not event.HasField("failed"):
            verdict = event.opened.first if event.HasField("opened") else event.verdict
            verdict.timings.queue_microseconds = verdict.timings.compute_microseconds = 0
        said.append(event.SerializeToString(deterministic=True))
    return sorted(said)


def clients_of(target: Target, connection: TargetConnection) -> list[Client]:
    """Of all kinds: greedy, drawn at random, with log-probabilities, with features, by another rule."""
    kinds: Sequence[dict[str, object]] = (
        {},
        {"params": SAMPLED},
        {"params": LOGPROBS},
        {"feature_states": (1, 2)},
        {"params": SAMPLED, "rule": REJECTION},
        {"params": SAMPLED, "feature_states": (2,)},
        {"max_length": 24},
    )
    clients = []
    for number, (prompt, kind) in enumerate(zip(PROMPTS, kinds, strict=True)):
        client = Client(target, prompt, connection=connection, **{"max_length": 200, **kind})  # type: ignore[arg-type]
        client.sequence_id = number.to_bytes(16, "little")
        clients.append(client)
    return clients


def opened(client: Client) -> None:
    command = client.open_command()
    (event,) = client.target.ask(client.connection, command)
    client.commit(event, command)


def spoil(rng: random.Random, command: target_pb2.TargetCommand, client: Client) -> None:
    """Make something of a window not what it should be; some of it the target answers all the same."""
    window = command.window
    changes: Sequence[Callable[[], object]] = (
        lambda: setattr(window, "checksum", window.checksum ^ 1),
        lambda: setattr(window, "base_length", window.base_length + 1),
        lambda: setattr(window, "epoch", window.epoch + 1),
        lambda: setattr(window, "epoch", window.epoch - 1),
        lambda: setattr(window, "round", max(window.round - 1, 0)),  # Asked again.
        lambda: setattr(window, "round", window.round + 5),
        lambda: window.token_ids.append(TINY_VOCAB_SIZE),
        lambda: window.token_ids.extend(range(17)),
        lambda: setattr(command, "sequence_id", bytes(15)),
        lambda: setattr(command, "sequence_id", b"nobody's" * 2),
    )
    rng.choice(changes)()


@pytest.mark.parametrize("seed", range(5))
def test_what_is_said_of_windows_is_the_same_in_a_batch_and_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    sides = []
    for _ in range(2):
        connection = TargetConnection()
        sides.append((connection, clients_of(Target(memory=CacheMemory(KVPool(512))), connection)))
    (connection, clients), (other_connection, others) = sides
    kinds: set[str | None] = set()
    for _ in range(24):
        for client, other in zip(clients, others, strict=True):
            if client.epoch == 0 or (rng.random() < 0.02 and len(client.token_ids) < client.max_length):
                opened(client)
                opened(other)
        commands = []
        for client in clients:
            if len(client.token_ids) >= client.max_length or rng.random() < 0.2:
                continue
            drafts = [rng.randrange(TINY_VOCAB_SIZE) for _ in range(rng.choice((0, 1, 4)))]
            if rng.random() < 0.6:
                drafts = target_text(client)[: rng.choice((1, 3))] + drafts
            command = client.window_command(drafts)
            command.window.without_features = rng.random() < 0.3
            if rng.random() < 0.15:
                spoil(rng, command, client)
            commands.append(command)
            if rng.random() < 0.05:
                commands.append(command)  # Twice.
        before = [len(each.target.runner.passes) for each in (clients[0], others[0])]
        events = clients[0].target.ask(connection, *commands)
        batch_events = others[0].target.ask(other_connection, in_columns(commands))
        after = [len(each.target.runner.passes) for each in (clients[0], others[0])]
        assert after[0] - before[0] == after[1] - before[1]
        kinds.update(event.WhichOneof("event") for event in batch_events)
        assert timeless(batch_events) == timeless(events)
        follow(clients, others, commands, events)
    assert kinds >= {"verdicts", "verdict", "failed"}


def target_text(client: Client) -> list[int]:
    """What a plain run would say next."""
    return plain_text(tiny_llama(), client.token_ids, client.params, len(client.token_ids) + 4)[len(client.token_ids) :]


def follow(
    clients: Sequence[Client],
    others: Sequence[Client],
    commands: Sequence[target_pb2.TargetCommand],
    events: Sequence[target_pb2.TargetEvent],
) -> None:
    """Take over what the target says; who was refused, or was not answered, opens again."""
    asked = {command.sequence_id: command.window for command in commands}
    for client, other in zip(clients, others, strict=True):
        of_client = [event for event in events if event.sequence_id == client.sequence_id]
        window = asked.get(client.sequence_id)
        good = [event for event in of_client if event.HasField("verdict") and event.round == client.round]
        if window is not None and good and len(of_client) == 1 and window.round == client.round:
            verdict = good[0].verdict
            client.token_ids += [*(window.token_ids[node] for node in verdict.accepted_nodes), verdict.next_token_id]
        elif client.round and len(client.token_ids) < client.max_length:
            other.round = client.round
            for each in (client, other):
                each.target.tell(each.connection, each.close_command())
                each.epoch += 1
            opened(client)
            opened(other)
        other.token_ids, other.epoch, other.round = list(client.token_ids), client.epoch, client.round


def three(target: Target, connection: TargetConnection, **kind: object) -> list[Client]:
    clients = [Client(target, prompt, connection=connection, **kind) for prompt in PROMPTS[:3]]  # type: ignore[arg-type]
    for client in clients:
        opened(client)
    return clients


def test_windows_of_a_batch_share_a_pass_and_an_answer() -> None:
    target, connection = Target(), TargetConnection()
    clients = three(target, connection)
    before = len(target.runner.passes)
    commands = [client.window_command([1, 2]) for client in clients]
    (event,) = target.ask(connection, in_columns(commands))
    assert len(target.runner.passes) == before + 1
    assert event.sequence_id == b""
    assert list(event.verdicts.sequence_ids) == [client.sequence_id for client in clients]
    assert (event.verdicts.batch_sequences, event.verdicts.batch_rows) == (3, 9)
    for client, command, single in zip(clients, commands, singles([event]), strict=True):
        client.commit(single, command)


def test_streams_get_their_own_verdicts_only() -> None:
    target = Target()
    connections = [TargetConnection(), TargetConnection()]
    clients = [three(target, connection) for connection in connections]
    for connection, of_connection in zip(connections, clients, strict=True):
        target.tell(connection, in_columns(client.window_command() for client in of_connection))
    target.work()
    for connection, of_connection in zip(connections, clients, strict=True):
        (event,) = connection.take()
        assert set(event.verdicts.sequence_ids) == {client.sequence_id for client in of_connection}


@pytest.mark.parametrize("column", [field.name for field in target_pb2.WindowBatch.DESCRIPTOR.fields])
@pytest.mark.parametrize("is_longer", [True, False])
def test_columns_that_do_not_match_are_refused_and_harm_nobody(column: str, is_longer: bool) -> None:
    target, connection = Target(), TargetConnection()
    clients = three(target, connection)
    command = in_columns(client.window_command([1, 2]) for client in clients)
    values = getattr(command.windows, column)
    if is_longer:
        values.append(values[-1])
    else:
        values.pop()
    command.sequence_id = clients[0].sequence_id
    (event,) = target.ask(connection, command)
    assert (event.sequence_id, event.failed.code) == (b"", INVALID)
    for client in clients:
        client.round -= 1
        client.verify([1, 2])


def test_a_batch_has_an_end() -> None:
    target, connection = Target(), TargetConnection()
    client = three(target, connection)[0]
    window = client.window_command()
    (event,) = target.ask(connection, in_columns([window] * 4097))
    assert (event.failed.code, "at most 4096 are taken" in event.failed.message) == (INVALID, True)
    events = target.ask(connection, in_columns([window] * 4096))
    assert len(list(singles(events))) == 1, "all but the first ask for what is about to be answered"


def test_a_bug_in_one_window_is_of_its_sequence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target, connection = Target(), TargetConnection()
    clients = three(target, connection)

    def fail_for_one(
        asked: AskedWindow, rule: model_pb2.AcceptanceRule.ValueType, info: model_pb2.ModelInfo
    ) -> DraftWindow:
        if asked.token_ids == [99]:
            raise ZeroDivisionError
        return read_window(asked, rule, info)

    monkeypatch.setattr(target_service.engine, "read_window", fail_for_one)
    commands = [client.window_command([number]) for client, number in zip(clients, (1, 99, 2), strict=True)]
    events = list(singles(target.ask(connection, in_columns(commands))))
    by_id = {event.sequence_id: event for event in events}
    assert by_id[clients[1].sequence_id].failed.code == INTERNAL
    for place in (0, 2):
        clients[place].commit(by_id[clients[place].sequence_id], commands[place])


def test_a_verdict_is_repeated_to_who_asks_again_and_says_the_same() -> None:
    target, connection = Target(), TargetConnection()
    clients = three(target, connection, feature_states=(1,))
    command = in_columns(client.window_command([1, 2]) for client in clients)
    first = list(singles(target.ask(connection, command)))
    again = target.ask(connection, command)
    assert [event.WhichOneof("event") for event in again] == ["verdict"] * 3
    assert again == first, "times too"


def test_what_was_asked_in_a_batch_goes_on_with_a_candidate() -> None:
    target, connection = Target(), TargetConnection()
    client = three(target, connection)[0]
    following = target_text(client)
    command = client.window_command()
    candidates = target_pb2.CandidateWindows(
        epoch=client.epoch,
        round=client.round + 1,
        base_length=command.window.base_length,
        checksum=command.window.checksum,
        windows=[target_pb2.CandidateWindow(next_token_id=following[0], token_ids=[following[1]])],
    )
    target.tell(connection, in_columns([command]))
    target.tell(connection, target_pb2.TargetCommand(sequence_id=client.sequence_id, candidates=candidates))
    target.work()
    first, second = singles(connection.take())
    assert first.verdict.next_token_id == following[0]
    assert not first.verdict.HasField("candidate")
    assert (second.round, second.verdict.candidate, list(second.verdict.accepted_nodes)) == (client.round + 1, 0, [0])


@pytest.mark.parametrize(("num_unread", "num_tokens"), [(255, 1), (256, 0)])
def test_who_does_not_read_gets_no_features(num_unread: int, num_tokens: int) -> None:
    target, connection = Target(), TargetConnection()
    clients = three(target, connection, feature_states=(1,))
    connection.num_left = num_unread
    (event,) = target.ask(connection, in_columns(client.window_command() for client in clients))
    assert [len(features) for features in event.verdicts.features] == [num_tokens * 64] * 3 * bool(num_tokens)
    for client in clients:
        single = target.ask(connection, client.window_command())[0]
        assert single.failed.code in {0, FAILED}


def test_batches_are_cut_where_features_would_make_them_large() -> None:
    target, connection = Target(), TargetConnection()
    client = three(target, connection)[0]
    target.ask(connection, in_columns([client.window_command([1])]))
    (sequence,) = (
        each for each in target.engine._sequences[connection].values() if each.sequence_id == client.sequence_id
    )
    answer = sequence.answers[-1]
    sizes = (2_000_000, 400_000, 400_000, 400_000, 2_000_000, 10, 10)
    answers = [answer._replace(features=bytes(size)) for size in sizes]
    events = list(batched(answers))
    assert [[len(each) for each in event.verdicts.features] for event in events] == [
        [2_000_000],
        [400_000, 400_000],
        [400_000],
        [2_000_000],
        [10, 10],
    ]
    assert list(batched([])) == []

"""Commands on sequences: what is repeated, dropped or refused, and that nobody else notices."""

from __future__ import annotations

import functools
from collections.abc import Callable

import grpc
import pytest

from specdec.checksum import prefix_checksum
from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2, sampling_pb2, target_pb2
from tests.plain_decoding import GREEDY, SAMPLED
from tests.target_service.driving import Client, Target, TargetConnection, generate

PROMPT = (5, 9, 200)
LENGTH = 20
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]
OUT_OF_RANGE = grpc.StatusCode.OUT_OF_RANGE.value[0]
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def client(target: Target) -> Client:
    """An open sequence with one token."""
    client = Client(target, PROMPT, SAMPLED, max_length=LENGTH)
    client.open()
    return client


def finish(client: Client) -> list[int]:
    """The whole text, with some more rounds."""
    while len(client.token_ids) < LENGTH:
        client.verify([1, 2])
    return client.token_ids


@functools.cache
def expected_text() -> list[int]:
    return generate(Client(Target(), PROMPT, SAMPLED, max_length=LENGTH))


@pytest.mark.parametrize("drafts", [[], [1, 2, 3]])
def test_a_round_asked_again_is_answered_again_and_not_run_again(client: Client, drafts: list[int]) -> None:
    # B32: same answer, no second cache write, no second draw.
    command = client.window_command(drafts)
    (first,) = client.target.ask(client.connection, command)
    passes = len(client.target.runner.passes)
    (again,) = client.target.ask(client.connection, command)
    assert again == first
    assert len(client.target.runner.passes) == passes
    client.commit(first, command)
    assert finish(client) == expected_text()


def test_the_round_of_an_open_can_be_asked_again_too(target: Target) -> None:
    client = Client(target, PROMPT)
    command = client.open_command()
    (first,) = target.ask(client.connection, command)
    client.commit(first, command)
    ask_again = client.window_command()
    ask_again.window.round = 0
    assert target.ask(client.connection, ask_again) == [first]


def test_a_round_that_is_being_worked_on_is_answered_once(client: Client) -> None:
    command = client.window_command([1, 2])
    client.target.tell(client.connection, command, command, command)
    client.target.work()
    (event,) = client.connection.take()
    client.commit(event, command)


def test_the_next_round_has_to_wait_for_the_verdict(client: Client) -> None:
    first = client.window_command([1])
    second = client.window_command([1])
    client.target.tell(client.connection, first, second)
    (event,) = client.connection.take()
    assert (event.round, event.failed.code) == (2, PRECONDITION)
    assert "round 1 has no verdict yet" in event.failed.message
    assert client.target.engine.num_sequences == 0
    client.target.work()
    assert client.connection.take() == []


def test_windows_of_older_rounds_are_dropped(client: Client) -> None:
    old = client.window_command([1])
    (event,) = client.target.ask(client.connection, old)
    client.commit(event, old)
    client.verify([2])
    assert client.target.ask(client.connection, old) == []
    assert finish(client) == expected_text()


def test_messages_of_older_epochs_are_dropped(client: Client) -> None:
    late_window = client.window_command([1])
    late_open = client.open_command()
    client.open()
    assert client.epoch == late_open.open.epoch + 1 == late_window.window.epoch + 2
    assert client.target.ask(client.connection, late_window) == []
    assert client.target.ask(client.connection, late_open) == []
    assert client.target.engine.num_sequences == 1
    assert finish(client) == expected_text()


def test_opening_again_replaces_what_was_known_and_what_was_pending(client: Client) -> None:
    client.verify()
    lost = client.window_command([3, 4])
    again = client.open_command()
    client.target.tell(client.connection, lost, again)
    client.target.work()
    (event,) = client.connection.take()
    client.commit(event, again)
    assert client.target.engine.num_sequences == 1
    assert finish(client) == expected_text()


def test_a_future_epoch_is_refused(client: Client) -> None:
    command = client.window_command()
    command.window.epoch = 2
    assert client.refused(command) == (PRECONDITION, "epoch 2 is not open; the open one is 1")


def test_an_epoch_is_opened_once(client: Client) -> None:
    client.epoch = 0
    code, message = client.refused(client.open_command())
    assert (code, message) == (PRECONDITION, "epoch 1 is open already; the next one is 2")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda window: window.__setattr__("base_length", window.base_length - 1), "3 tokens, but 4 are committed"),
        (lambda window: window.__setattr__("base_length", window.base_length + 1), "5 tokens, but 4 are committed"),
        (lambda window: window.__setattr__("checksum", window.checksum ^ 1), "another checksum"),
    ],
)
def test_another_prefix_is_refused_and_repaired_by_opening_again(
    client: Client, spoil: Callable[[target_pb2.Window], None], reason: str
) -> None:
    command = client.window_command([1])
    spoil(command.window)
    code, message = client.refused(command)
    assert code == PRECONDITION
    assert reason in message
    code, message = client.refused(client.window_command())
    assert (code, "not open on this stream" in message) == (PRECONDITION, True)
    client.open()
    assert finish(client) == expected_text()


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"token_ids": []}, INVALID, "token_ids is empty"),
        ({"token_ids": [1, 320]}, INVALID, "token_ids has an id outside the vocabulary of 320"),
        ({"prompt_length": 0}, INVALID, "prompt_length is 0; it must be between 1 and the 3 tokens sent"),
        ({"prompt_length": 4}, INVALID, "prompt_length is 4"),
        ({"acceptance_rule": model_pb2.ACCEPTANCE_RULE_UNSPECIFIED}, INVALID, "acceptance_rule"),
        ({"max_length": 0}, INVALID, "max_length is 0; it must be between 1 and the context of 256"),
        ({"max_length": 257}, INVALID, "max_length is 257"),
        ({"max_length": 3}, OUT_OF_RANGE, "3 tokens leave no room for another one within max_length 3"),
        ({"sampling": sampling_pb2.SamplingParams()}, INVALID, "sampling.temperature is not set"),
        ({"sampling": SamplingParams(banned_token_ids=(320,)).to_proto()}, INVALID, "banned_token_ids"),
        ({"epoch": 0}, INVALID, "epoch is 0"),
    ],
)
def test_an_open_that_means_nothing_is_refused(
    target: Target, changes: dict[str, object], code: int, reason: str
) -> None:
    client = Client(target, PROMPT)
    command = client.open_command()
    fields = {field.name: getattr(command.open, field.name) for field in command.open.DESCRIPTOR.fields}
    command.open.CopyFrom(target_pb2.TargetOpen(**{**fields, **changes}))
    found = client.refused(command)
    assert found[0] == code
    assert reason in found[1]
    assert target.engine.num_sequences == 0


@pytest.mark.parametrize(
    ("tokens", "parents", "reason"),
    [
        ([320], None, "window.token_ids has an id outside the vocabulary of 320"),
        ([0] * 17, None, "17 draft tokens; at most 16"),
        ([1, 2], [-1], "window.parents must be empty or as long"),
        ([], [-1], "window.parents must be empty or as long"),
        ([1, 2], [-1, 1], "-1 or the index of an earlier node"),
        ([1, 2], [0, -1], "-1 or the index of an earlier node"),
        ([1, 2], [-1, -2], "-1 or the index of an earlier node"),
        ([1, 1], [-1, -1], "same parent and the same token"),
    ],
)
def test_a_window_that_means_nothing_is_refused(
    client: Client, tokens: list[int], parents: list[int] | None, reason: str
) -> None:
    code, message = client.refused(client.window_command(tokens, parents))
    assert code == INVALID
    assert reason in message


@pytest.mark.parametrize("rule", [model_pb2.ACCEPTANCE_RULE_REJECTION, model_pb2.ACCEPTANCE_RULE_BLOCK])
def test_trees_are_for_the_coupled_rule(target: Target, rule: model_pb2.AcceptanceRule.ValueType) -> None:
    client = Client(target, PROMPT, rule=rule)
    client.open()
    client.verify([1, 2], [-1, 0])  # a chain, spelled out
    code, message = client.refused(client.window_command([1, 2], [-1, -1]))
    assert (code, "coupled rule only" in message) == (INVALID, True)


def test_draft_laws_must_match_their_tokens(target: Target) -> None:
    for laws, reason in (
        ([model_pb2.DraftDistribution(token_ids=[1], weights=[1])], "as long as window.token_ids"),
        ([model_pb2.DraftDistribution(token_ids=[1], weights=[1])] * 2, "probability 0"),
    ):
        client = Client(target, PROMPT, rule=model_pb2.ACCEPTANCE_RULE_REJECTION)
        client.open()
        command = client.window_command([1, 2])
        command.window.distributions.extend(laws)
        code, message = client.refused(command)
        assert (code, reason in message) == (INVALID, True)


def test_a_sequence_that_is_full_takes_no_further_window(target: Target) -> None:
    client = Client(target, PROMPT, max_length=4)
    client.open()
    code, message = client.refused(client.window_command())
    assert (code, message) == (OUT_OF_RANGE, "the sequence has reached its max_length of 4")


@pytest.mark.parametrize("sequence_id", [b"", b"short", b"x" * 17])
def test_a_malformed_sequence_id_is_refused(target: Target, sequence_id: bytes) -> None:
    client = Client(target, PROMPT)
    client.sequence_id = sequence_id
    code, message = client.refused(client.open_command())
    assert (code, "it must have 16" in message) == (INVALID, True)


def test_a_command_without_a_kind_is_refused(target: Target) -> None:
    client = Client(target, PROMPT)
    code, message = client.refused(target_pb2.TargetCommand(sequence_id=client.sequence_id))
    assert (code, message) == (INVALID, "a command is neither open, window, windows, candidates nor close")


def test_rules_that_leave_no_token_fail_their_sequence_alone(target: Target) -> None:
    params = SamplingParams(temperature=0.0, allowed_token_ids=(5, 6), no_repeat_ngram_size=1)
    stuck, other = Client(target, PROMPT, params), Client(target, PROMPT, GREEDY)
    stuck.open()  # 6: 5 is in the prompt
    other.open()
    commands = stuck.window_command(), other.window_command()
    target.tell(stuck.connection, commands[0])
    target.tell(other.connection, commands[1])
    target.work()
    (failed,) = stuck.connection.take()
    assert (failed.failed.code, "exclude every token" in failed.failed.message) == (INVALID, True)
    (event,) = other.connection.take()
    other.commit(event, commands[1])
    assert target.engine.num_sequences == 1


def test_closing_forgets_and_is_harmless_when_there_is_nothing(client: Client) -> None:
    pending = client.window_command([1])
    client.target.tell(client.connection, pending, client.close_command(), client.close_command())
    client.target.work()
    assert client.connection.take() == []
    assert client.target.engine.num_sequences == 0
    code, _ = client.refused(client.window_command())
    assert code == PRECONDITION


def test_the_end_of_a_stream_forgets_its_sequences_and_no_others(target: Target) -> None:
    connection = TargetConnection()
    mine = [Client(target, PROMPT, connection=connection) for _ in range(3)]
    other = Client(target, PROMPT)
    for client in (*mine, other):
        client.open()
    target.tell(connection, mine[0].window_command([1]), None)
    assert target.engine.num_sequences == 1
    target.work()
    assert connection.take() == []
    other.verify([1])
    assert set(target.engine._sequences) == {other.connection}
    # A stream names its own sequences only.
    mine[0].sequence_id = other.sequence_id
    code, message = mine[0].refused(mine[0].window_command())
    assert (code, "not open on this stream" in message) == (PRECONDITION, True)
    other.verify([1])


def test_the_number_of_sequences_is_limited() -> None:
    target = Target(max_num_sequences=2)
    clients = [Client(target, PROMPT) for _ in range(3)]
    clients[0].open()
    clients[1].open()
    code, message = clients[2].refused(clients[2].open_command())
    assert (code, message) == (EXHAUSTED, "2 sequences are open, which is the limit")
    clients[1].open()  # again: it has its place already
    target.tell(clients[0].connection, clients[0].close_command())
    clients[2].open()


def test_a_service_that_drains_goes_on_with_what_it_has(client: Client) -> None:
    client.target.engine.is_draining = True
    client.verify([1])
    other = Client(client.target, PROMPT)
    code, message = other.refused(other.open_command())
    assert (code, "another replica" in message) == (UNAVAILABLE, True)
    client.verify([1])


def test_checksums_are_kept_up_over_many_rounds(client: Client) -> None:
    finish(client)
    sequence = client.target.engine._sequences[client.connection][client.sequence_id]
    assert sequence.token_ids == client.token_ids
    assert sequence.checksum == prefix_checksum(client.token_ids)

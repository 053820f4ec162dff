"""Features of verdicts are hidden states of the committed tokens that were run for them, and of no others."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import grpc
import numpy
import pytest
import torch

from specdec.engine.memory import CacheMemory
from specdec.runner.cache import SequenceCache
from specdec.runner.pool import KVPool
from specdec.v1 import target_pb2
from target_service import sequence as sequence_module
from tests.plain_decoding import GREEDY, SAMPLED, plain_text
from tests.specdec.runner.tiny_architectures import plain_states
from tests.target_service.driving import Client, Target
from tests.tiny_models import tiny_llama

PROMPT = tuple(range(40, 51))
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]
BOTH = (1, 2)


def features_of(verdict: target_pb2.Verdict, num_states: int = 2) -> torch.Tensor:
    """(tokens, states, hidden_size), float32."""
    found = numpy.frombuffer(verdict.features, "<u2").astype("<u4") << 16  # bfloat16 is the upper half of float32.
    return torch.from_numpy(found.view("<f4").reshape(-1, num_states, 32))


def assert_features(
    client: Client, verdict: target_pb2.Verdict, num_tokens: int, numbers: Sequence[int] = BOTH
) -> None:
    """Those of the last tokens before the next one, as a plain run of the text gives them."""
    expected = plain_states(tiny_llama(), client.token_ids[: verdict.committed_length - 1])
    found = features_of(verdict, len(numbers))
    assert len(found) == num_tokens
    wanted = expected[len(expected) - num_tokens :, [number - 1 for number in numbers]]
    torch.testing.assert_close(found, wanted, atol=1e-2, rtol=1e-2)


@functools.cache
def text() -> list[int]:
    """What the target writes behind the prompt."""
    return plain_text(tiny_llama(), PROMPT, SAMPLED, 40)


def right(client: Client, count: int) -> list[int]:
    """Draft tokens that are accepted."""
    return text()[len(client.token_ids) :][:count]


@pytest.mark.parametrize("numbers", [(1,), (2,), (1, 2)])
def test_an_open_gives_those_of_the_prompt_and_a_window_those_of_what_it_added(numbers: tuple[int, ...]) -> None:
    client = Client(Target(), PROMPT, SAMPLED, feature_states=numbers)
    assert_features(client, client.open(), len(PROMPT), numbers)
    # All are right, some, none, and there are none.
    for num_right, num_wrong in ((3, 0), (2, 2), (0, 3), (0, 0), (1, 1)):
        drafts = right(client, num_right)
        verdict = client.verify([*drafts, *[(text()[len(client.token_ids) + num_right] + 1) % 320] * num_wrong])
        assert len(verdict.accepted_nodes) == num_right
        assert_features(client, verdict, num_right + 1, numbers)


def test_of_a_tree_they_are_those_of_the_accepted_path() -> None:
    client = Client(Target(), PROMPT, SAMPLED, feature_states=BOTH)
    client.open()
    first, second, third = right(client, 3)
    nodes = [(first + 1) % 320, first, 7, second, (third + 1) % 320]
    verdict = client.verify(nodes, [-1, -1, 0, 1, 3])
    assert list(verdict.accepted_nodes) == [1, 3]
    assert_features(client, verdict, 3)
    # They go on from there.
    assert_features(client, client.verify(right(client, 1)), 2)


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (1, 1), (4, 4), (11, 11), (12, 11)])
def test_an_open_gives_no_more_than_asked_for(limit: int, expected: int) -> None:
    client = Client(Target(), PROMPT, SAMPLED, feature_states=BOTH, max_feature_tokens=limit)
    assert_features(client, client.open(), expected)
    # The limit is that of an open alone.
    assert_features(client, client.verify(right(client, 3)), 4)


def test_an_open_gives_no_more_than_fit_into_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    # One state is 32 numbers of 2 bytes.
    monkeypatch.setattr(sequence_module, "MAX_BYTES", 5 * 128 + 127)
    client = Client(Target(), PROMPT, SAMPLED, feature_states=BOTH)
    assert_features(client, client.open(), 5)


@pytest.mark.parametrize("limit", [100, 21, 3])
def test_a_prompt_that_is_prefilled_in_chunks_gives_all(limit: int) -> None:
    target = Target(max_batch_rows=17)
    prompt = [(7 * place) % 300 for place in range(50)]
    client = Client(target, prompt, SAMPLED, feature_states=BOTH, max_feature_tokens=limit)
    assert_features(client, client.open(), min(limit, 50))
    assert len(target.runner.passes) == 3


def test_what_is_found_in_the_cache_has_them_too() -> None:
    target = Target()
    prompt = [(7 * place) % 300 for place in range(50)]
    first = Client(target, prompt, SAMPLED, feature_states=BOTH)
    assert_features(first, first.open(), 50)
    longer = Client(target, [*prompt[:40], 3, 4, 5], SAMPLED, feature_states=BOTH)
    # Two blocks of 16 tokens are there, and the third is copied.
    assert_features(longer, longer.open(), 43)
    same = Client(target, prompt, SAMPLED, feature_states=BOTH)
    assert_features(same, same.open(), 50)
    assert_features(same, same.verify(), 1)


def test_what_was_run_before_anybody_wanted_any_is_run_again() -> None:
    target = Target()
    prompt = [(7 * place) % 300 for place in range(50)]
    Client(target, prompt, SAMPLED).open()
    first = Client(target, [*prompt[:40], 3, 4, 5], SAMPLED, feature_states=BOTH)
    # So it is run again, and takes the place of what has none.
    assert_features(first, first.open(), 43)
    again = Client(target, [*prompt[:40], 6], SAMPLED, feature_states=BOTH)
    assert_features(again, again.open(), 41)
    assert sum(target.runner.passes[-1]) < 41
    # Whatever is run from now on has them, whoever runs it.
    other = [(3 * place) % 300 for place in range(50)]
    Client(target, other, SAMPLED).open()
    second = Client(target, other, SAMPLED, feature_states=BOTH)
    assert_features(second, second.open(), 50)
    # Who wants none takes what there is.
    plain = Client(target, [*prompt[:40], 9], SAMPLED)
    plain.open()
    assert sum(target.runner.passes[-1]) < 41


@pytest.mark.parametrize(("asked", "expected"), [(0, 3), (1, 3), (2, 3), (5, 5), (16, 16), (1000, 16)])
def test_a_window_gives_those_of_as_many_tokens_as_it_asks_for(asked: int, expected: int) -> None:
    """For a drafter that was opened in mid-request."""
    client = Client(Target(), PROMPT, SAMPLED, feature_states=BOTH)
    client.open()
    client.verify(right(client, 1))
    command = client.window_command(right(client, 2))
    command.window.max_feature_tokens = asked
    (event,) = client.target.ask(client.connection, command)
    assert_features(client, client.commit(event, command), expected)


def test_a_window_that_wants_none_gets_none_and_a_later_one_those_of_all_tokens() -> None:
    client = Client(Target(), PROMPT, SAMPLED, feature_states=BOTH, max_feature_tokens=0)
    client.open()
    for _ in range(2):
        command = client.window_command(right(client, 2))
        command.window.without_features = True
        (event,) = client.target.ask(client.connection, command)
        assert event.verdict.features == b""
        client.commit(event, command)
    length = len(client.token_ids)
    command = client.window_command([])
    command.window.max_feature_tokens = 1000
    (event,) = client.target.ask(client.connection, command)
    assert_features(client, client.commit(event, command), length)


def test_nobody_gets_more_than_fit_into_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_module, "MAX_BYTES", 6 * 128)
    client = Client(Target(), PROMPT, SAMPLED, feature_states=BOTH)
    client.open()
    command = client.window_command(right(client, 2))
    command.window.max_feature_tokens = 1000
    (event,) = client.target.ask(client.connection, command)
    assert_features(client, client.commit(event, command), 6)


def test_only_those_get_them_who_asked_and_each_the_ones_asked_for() -> None:
    target = Target()
    asking = [(), (2,), (1, 2), (), (1,)]
    clients = [
        Client(target, [place, *PROMPT], GREEDY, feature_states=numbers, max_feature_tokens=place + 2)
        for place, numbers in enumerate(asking)
    ]
    commands = [client.open_command() for client in clients]
    for client, command in zip(clients, commands, strict=True):
        target.tell(client.connection, command)
    target.work()
    assert len(target.runner.passes) == 1, "all in one pass"
    for place, (client, command) in enumerate(zip(clients, commands, strict=True)):
        (event,) = client.connection.take()
        verdict = client.commit(event, command)
        if client.feature_states:
            assert_features(client, verdict, place + 2, client.feature_states)
        else:
            assert verdict.features == b""


def test_a_round_asked_again_has_the_same_features() -> None:
    client = Client(Target(), PROMPT, SAMPLED, feature_states=BOTH)
    client.open()
    command = client.window_command([*right(client, 2), 3])
    (first,) = client.target.ask(client.connection, command)
    (again,) = client.target.ask(client.connection, command)
    assert again.verdict.features == first.verdict.features != b""


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ((0,), "from 1 to at most 2"),
        ((3,), "from 1 to at most 2"),
        ((1, 3), "from 1 to at most 2"),
        ((2, 1), "must increase"),
        ((1, 1), "must increase"),
        (range(1, 10), "has 9 numbers; at most 8 are given"),
    ],
)
def test_states_that_there_are_not(numbers: Sequence[int], reason: str) -> None:
    client = Client(Target(), PROMPT, feature_states=numbers)
    code, message = client.refused(client.open_command())
    assert code == INVALID
    assert "feature_states" in message
    assert reason in message


@pytest.mark.parametrize("is_found", [True, False])
def test_a_prefill_that_begins_again_gives_them_once(monkeypatch: pytest.MonkeyPatch, is_found: bool) -> None:
    target = Target(max_batch_rows=16)
    prompt = [(7 * place) % 300 for place in range(50)]
    client = Client(target, prompt, SAMPLED, feature_states=BOTH)
    command = client.open_command()
    target.tell(client.connection, command)
    target.engine.step()
    target.engine.step()
    # As when an older sequence needs the memory, and writes into it or does not come to that.
    cache = target.engine._sequences[client.connection][client.sequence_id].cache
    assert cache.length == 32
    cache.release()
    if not is_found:
        monkeypatch.setattr(SequenceCache, "adopt", lambda *_: None)
    target.work()
    assert len(target.runner.passes) == (4 if is_found else 6)
    (event,) = client.connection.take()
    assert_features(client, client.commit(event, command), 50)


def test_under_pressure_every_verdict_has_its_own() -> None:
    generator = random.Random(2)
    memory = CacheMemory(KVPool(12), overcommit=4.0, max_num_queued=16)
    target = Target(max_num_draft_tokens=4, max_batch_rows=24, memory=memory)
    clients = []
    for _ in range(8):
        prompt = [generator.randrange(320) for _ in range(generator.randrange(1, 60))]
        clients.append(Client(target, prompt, SAMPLED, max_length=len(prompt) + 30, feature_states=BOTH))
    asked = {id(client): client.open_command() for client in clients}
    for client in clients:
        target.tell(client.connection, asked[id(client)])
    running = list(clients)
    for _ in range(2000):
        target.engine.step()
        for client in list(running):
            for event in client.connection.take():
                verdict = client.commit(event, asked[id(client)])
                num_tokens = len(features_of(verdict))
                assert num_tokens >= 1 if client.round == 0 else num_tokens == len(verdict.accepted_nodes) + 1
                assert_features(client, verdict, num_tokens)
                if len(client.token_ids) >= client.max_length:
                    target.tell(client.connection, client.close_command())
                    running.remove(client)
                    continue
                drafts = plain_text(tiny_llama(), client.token_ids, SAMPLED, len(client.token_ids) + 1)[-1:]
                asked[id(client)] = client.window_command([*drafts, generator.randrange(320)])
                target.tell(client.connection, asked[id(client)])
        if not running:
            break
    assert not running
    assert memory.num_preemptions > 0

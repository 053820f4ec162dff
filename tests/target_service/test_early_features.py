"""Features of a prompt that are told while it is still prefilled."""

from __future__ import annotations

import numpy
import pytest
import torch

from specdec.v1 import target_pb2
from target_service import sequence as sequence_module
from tests.specdec.runner.tiny_architectures import plain_states
from tests.target_service.driving import Client, Target
from tests.tiny_models import tiny_llama

PROMPT = tuple(range(40, 90))
BYTES = 2 * 32 * 2
"""Of a token: two states of 32 numbers."""


def opened(client: Client, *, is_early: bool = True) -> list[target_pb2.TargetEvent]:
    """What an open is answered with."""
    command = client.open_command()
    command.open.tells_features_early = is_early
    events = client.target.ask(client.connection, command)
    assert [event.WhichOneof("event") for event in events] == [*(len(events) - 1) * ["features"], "opened"]
    assert {(event.sequence_id, event.epoch, event.round) for event in events} == {(client.sequence_id, 1, 0)}
    return events


def ends(events: list[target_pb2.TargetEvent]) -> list[int]:
    """Where the parts end."""
    return [event.features.end for event in events[:-1]]


def assert_told(events: list[target_pb2.TargetEvent], first: int) -> None:
    """All features from a token on, each once, in order."""
    data, length = b"", first
    for event in events:
        told = event.features.features if event.HasField("features") else event.opened.first.features
        data += told
        length += len(told) // BYTES
        assert not event.HasField("features") or event.features.end == length
    assert length == len(PROMPT)
    found = numpy.frombuffer(data, "<u2").astype("<u4") << 16
    expected = plain_states(tiny_llama(), list(PROMPT))[first:]
    torch.testing.assert_close(torch.from_numpy(found.view("<f4").reshape(-1, 2, 32)), expected, atol=1e-2, rtol=1e-2)


def target_of_small_passes() -> Target:
    return Target(prefill_chunk_rows=16, max_batch_rows=16, max_num_draft_tokens=8)


def client_of(target: Target, *, max_feature_tokens: int = 1 << 20) -> Client:
    return Client(target, PROMPT, max_length=64, feature_states=(1, 2), max_feature_tokens=max_feature_tokens)


def test_each_pass_tells_what_it_has_run_and_the_verdict_the_rest() -> None:
    events = opened(client_of(target_of_small_passes()))
    assert ends(events) == [16, 32, 48]
    assert_told(events, 0)


def test_no_more_than_are_wanted() -> None:
    events = opened(client_of(target_of_small_passes(), max_feature_tokens=15))
    assert ends(events) == [48]
    assert_told(events, 35)


def test_what_no_message_takes_comes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_module, "MAX_BYTES", 20 * BYTES)
    target = Target()
    for num_cached in (0, 49):  # Once run, and once found in memory.
        events = opened(client_of(target))
        assert events[-1].opened.num_cached_tokens == num_cached
        assert ends(events) == [20, 30]
        assert_told(events, 0)


def test_none_unless_asked_for_and_none_to_a_peer_that_does_not_read() -> None:
    events = opened(client_of(target_of_small_passes()), is_early=False)
    assert len(events) == 1
    assert_told(events, 0)
    for num_unread, expected, num_last in ((255, [16, 32, 48], 2), (256, [], 0)):
        client = client_of(target_of_small_passes())
        client.connection.num_left = num_unread
        events = opened(client)
        assert ends(events) == expected
        assert len(events[-1].opened.first.features) == num_last * BYTES


def test_nothing_is_told_where_no_features_are_wanted() -> None:
    client = Client(target_of_small_passes(), PROMPT)
    assert len(opened(client)) == 1

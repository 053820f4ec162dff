"""A forward pass of a draft model that fails, fails those at fault; and commands that no orchestrator sends."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import pytest
import torch

import draft_service.sequence
from draft_service.drafters.ngram import NgramDrafter
from specdec.engine.limits import LARGEST_CONTEXT_LENGTH
from specdec.runner.runner import Work
from tests.draft_service.driving import Client, Engine, ModelEngine
from tests.plain_decoding import GREEDY

INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]
OUT_OF_RANGE = grpc.StatusCode.OUT_OF_RANGE.value[0]
INTERNAL = grpc.StatusCode.INTERNAL.value[0]
POISON = 319


def fail_on_poison(engine: ModelEngine) -> None:
    forward = engine.runner.forward

    def poisoned(batch: Sequence[Work]) -> list[torch.Tensor]:
        if any(POISON in work.token_ids for work in batch):
            raise RuntimeError("boom")
        return forward(batch)

    engine.runner.forward = poisoned  # type: ignore[method-assign]


def test_whoever_makes_a_pass_fail_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine = ModelEngine()
    fail_on_poison(engine)
    clients = [Client(engine, [5, 9, 200 + index], GREEDY) for index in range(4)]
    bad = clients[2]
    for client in clients:
        client.open(2)
    for _ in range(5):
        for client in clients:
            engine.tell(client.connection, client.commit_command(0, POISON if client is bad else 17, 2))
        engine.work()
        for client in clients:
            (event,) = client.connection.take()
            if client is bad:
                assert event.failed.code == INTERNAL
            else:
                proposed = client.take(event, 2)
                assert list(proposed.token_ids) == list(Client(ModelEngine(), client.token_ids).open(2).token_ids)
        bad.token_ids[-1] = 17
        bad.open(2)
    assert caplog.text.count("a forward pass failed") == 5


def test_a_sequence_that_fails_alone_again_and_again_does_not_end_the_service(caplog: pytest.LogCaptureFixture) -> None:
    engine = ModelEngine()
    fail_on_poison(engine)
    for _ in range(6):
        client = Client(engine, [POISON, 2], GREEDY)
        assert client.refused(client.open_command(2))[0] == INTERNAL
    Client(engine, [5, 9], GREEDY).open(2)
    assert "does not run any more" not in caplog.text


def lookup() -> Engine:
    return Engine(NgramDrafter(min_length=1, max_length=2, max_num_draft_tokens=4, max_num_sequences=4))


def test_a_prompt_longer_than_any_context_is_refused_where_there_is_no_model() -> None:
    client = Client(lookup(), [1] * (LARGEST_CONTEXT_LENGTH + 1))
    code, message = client.refused(client.open_command(2))
    assert (code, message) == (INVALID, "token_ids has 1048577 ids; at most 1048576 are taken")


def test_and_no_sequence_grows_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_service.sequence, "LARGEST_CONTEXT_LENGTH", 5)
    client = Client(lookup(), [1, 2, 1])
    client.open(2)
    client.commit(1, 1, 2)
    code, message = client.refused(client.commit_command(0, 1, 2))
    assert (code, message) == (OUT_OF_RANGE, "the sequence would have more than 5 tokens")

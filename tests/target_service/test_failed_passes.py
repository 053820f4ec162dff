"""B34: a forward pass that fails, or gives no numbers, fails those at fault and nobody else."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import pytest
import torch

from specdec.runner.hidden_states import HiddenStates
from specdec.runner.runner import Work
from specdec.sampling.params import ACCEPTANCE_RULES, SamplingParams
from specdec.v1 import model_pb2
from tests.plain_decoding import GREEDY, SAMPLED
from tests.specdec.runner.recording_runner import RecordingRunner
from tests.target_service.driving import Client, Target, generate
from tests.target_service.test_batching import LENGTH, alone, some_clients
from tests.tiny_models import TINY_VOCAB_SIZE

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
DATA_LOSS = grpc.StatusCode.DATA_LOSS.value[0]
INTERNAL = grpc.StatusCode.INTERNAL.value[0]


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (torch.OutOfMemoryError("out of memory"), EXHAUSTED),
        (MemoryError(), EXHAUSTED),
        (RuntimeError("boom"), INTERNAL),
    ],
)
def test_a_pass_that_fails_fails_its_sequences_and_no_others(
    problem: Exception, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    # B34: those in the pass are told and forgotten; who was not in it, and who comes next, is served.
    target = Target()
    clients = some_clients(target)
    for client in clients:
        client.open()
    target.runner.problem = problem
    target.runner.passes.clear()
    for client in clients[:2]:
        target.tell(client.connection, client.window_command([1]))
    target.work()
    target.runner.problem = None
    assert target.runner.passes[:2] == [[2, 2], [2]], "each is tried alone"
    for client in clients[:2]:
        (event,) = client.connection.take()
        assert (event.failed.code, event.round) == (code, client.round)
        assert "the sequence's cache was dropped" in event.failed.message
    assert "a forward pass failed" in caplog.text
    assert target.engine.num_sequences == 2
    for client in clients:
        if client in clients[:2]:
            client.open()
        while len(client.token_ids) < LENGTH:
            client.verify([1])
        assert client.token_ids == alone(client)


def test_an_engine_whose_passes_keep_failing_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    target = Target()
    target.runner.problem = RuntimeError("device lost")
    clients = [Client(target, [1, 2]) for _ in range(3)]
    for client in clients[:2]:
        target.tell(client.connection, client.open_command())
        target.work()
        (event,) = client.connection.take()
        assert event.failed.code == INTERNAL
    target.tell(clients[2].connection, clients[2].open_command())
    with pytest.raises(RuntimeError, match="device lost"):
        target.work()
    assert caplog.text.count("a forward pass failed") == 3


def test_failures_far_apart_are_forgiven(caplog: pytest.LogCaptureFixture) -> None:
    target = Target()
    for _ in range(5):
        client = Client(target, [1, 2], max_length=6)
        target.runner.problem = RuntimeError("hiccup")
        target.tell(client.connection, client.open_command())
        target.work()
        client.connection.take()
        target.runner.problem = None
        client.open()
    assert caplog.text.count("a forward pass failed") == 5


class PoisonedRunner(RecordingRunner):
    """Fails when it runs a certain token."""

    poison: int = 319
    error: type[Exception] = RuntimeError

    def forward(self, batch: Sequence[Work]) -> list[torch.Tensor]:
        if any(self.poison in work.token_ids for work in batch):
            self.passes.append([len(work.token_ids) for work in batch])
            raise self.error("boom")
        return super().forward(batch)


@pytest.mark.parametrize(("error", "code"), [(RuntimeError, INTERNAL), (MemoryError, EXHAUSTED)])
def test_whoever_makes_a_pass_fail_fails_alone(
    error: type[Exception], code: int, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target()
    clients = some_clients(target)
    texts = [alone(client) for client in clients]
    target.engine._runner = runner = PoisonedRunner(target.model, TINY_VOCAB_SIZE, HiddenStates(target.model))
    runner.error = error
    bad = clients[1]
    for client in clients:
        client.open()
    for _ in range(5):
        pairs = [
            (client, client.window_command([319 if client is bad else 1]))
            for client in clients
            if client is bad or len(client.token_ids) < LENGTH
        ]
        for client, command in pairs:
            target.tell(client.connection, command)
        target.work()
        for client, command in pairs:
            (event,) = client.connection.take()
            if client is bad:
                assert event.failed.code == code
            else:
                client.commit(event, command)
        bad.open()
    assert caplog.text.count("a forward pass failed") == 5, "one line for each, and the service is alive"
    for client, text in zip(clients, texts, strict=True):
        while len(client.token_ids) < LENGTH:
            client.verify([1])
        assert client.token_ids == text


def test_a_sequence_that_fails_alone_again_and_again_does_not_end_the_service(caplog: pytest.LogCaptureFixture) -> None:
    target = Target()
    target.engine._runner = PoisonedRunner(target.model, TINY_VOCAB_SIZE, HiddenStates(target.model))
    for _ in range(6):
        assert Client(target, [319, 2]).refused_by_the_model() == INTERNAL
    assert generate(Client(target, [5, 9], max_length=8)) == generate(Client(Target(), [5, 9], max_length=8))
    assert "does not run any more" not in caplog.text


def test_memory_that_stays_short_ends_it() -> None:
    target = Target()
    target.engine._runner = runner = PoisonedRunner(target.model, TINY_VOCAB_SIZE, HiddenStates(target.model))
    runner.error = MemoryError
    assert [Client(target, [319, 2]).refused_by_the_model() for _ in range(2)] == [EXHAUSTED] * 2
    with pytest.raises(MemoryError):
        Client(target, [319, 2]).refused_by_the_model()


def test_a_window_that_cannot_be_judged_fails_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target()
    broken, other = some_clients(target)[:2]
    broken.open()
    other.open()
    judge = target.engine._sequences[broken.connection][broken.sequence_id].judge

    def fail(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr(judge, "_accept", fail)
    target.tell(broken.connection, broken.window_command([1]))
    target.tell(other.connection, command := other.window_command([1]))
    target.work()
    (event,) = broken.connection.take()
    assert event.failed.code == INTERNAL
    assert "IndexError" in caplog.text
    (event,) = other.connection.take()
    other.commit(event, command)


@pytest.mark.parametrize("rule", ACCEPTANCE_RULES)
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SAMPLED,
        SamplingParams(seed=1, top_k=5, top_p=0.9, min_p=0.01, typical_p=0.9, num_logprobs=2),
        SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=1.0, no_repeat_ngram_size=2),
    ],
    ids=["greedy", "sampled", "filtered", "penalised"],
)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("drafts", [[], [1, 2]])
def test_no_token_comes_of_logits_that_are_no_numbers(
    rule: model_pb2.AcceptanceRule.ValueType, params: SamplingParams, value: float, drafts: list[int]
) -> None:
    target = Target()
    client = Client(target, [5, 9, 200], params, rule=rule)
    client.open()
    forward = target.runner.forward

    def broken(batch: Sequence[Work]) -> list[torch.Tensor]:
        return [torch.full_like(logits, value) for logits in forward(batch)]

    target.runner.forward = broken  # type: ignore[method-assign]
    (event,) = target.ask(client.connection, client.window_command(drafts))
    assert event.failed.code == DATA_LOSS
    assert "not finite numbers" in event.failed.message


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_a_model_that_gives_no_numbers_fails_the_sequence_alone(
    params: SamplingParams, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target()
    forward = target.runner.forward

    @torch.inference_mode()
    def broken_for_the_first(batch: Sequence[Work]) -> list[torch.Tensor]:
        logits = forward(batch)
        logits[0][:, 7] = torch.nan
        return logits

    clients = [Client(target, [5, 9, number], params) for number in (200, 201)]
    for client in clients:
        client.open()
    target.runner.forward = broken_for_the_first  # type: ignore[method-assign]
    commands = [client.window_command([1]) for client in clients]
    for client, command in zip(clients, commands, strict=True):
        target.tell(client.connection, command)
    target.work()
    (failed,) = clients[0].connection.take()
    assert (failed.failed.code, "not finite" in failed.failed.message) == (DATA_LOSS, True)
    (event,) = clients[1].connection.take()
    clients[1].commit(event, commands[1])
    # Nobody starts from what gave no numbers; what the other one computed stays.
    for client in clients:
        target.tell(client.connection, client.close_command())
    assert target.memory.pool.blocks.num_cached == 1
    assert caplog.text == ""

"""Commands that no orchestrator sends: bounded in what they cost, and of their own sequence alone."""

from __future__ import annotations

import grpc
import pytest

import target_service.engine
from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2, target_pb2
from tests.target_service.driving import Client, Target, TargetConnection

PROMPT = (5, 9, 200)
TOO_LARGE = 1 << 31
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]
INTERNAL = grpc.StatusCode.INTERNAL.value[0]
OUT_OF_RANGE = grpc.StatusCode.OUT_OF_RANGE.value[0]


@pytest.fixture
def target() -> Target:
    return Target()


def test_an_id_of_any_length_is_not_sent_back_whole(target: Target) -> None:
    connection = TargetConnection()
    for command in (target_pb2.TargetCommand(open=target_pb2.TargetOpen(epoch=1)), target_pb2.TargetCommand()):
        command.sequence_id = bytes(3 << 20)
        (event,) = target.ask(connection, command)
        assert event.failed.code == INVALID
        assert event.sequence_id == bytes(17), "nobody's"


def test_a_bug_in_one_command_is_of_its_sequence_alone(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, other = Client(target, PROMPT), Client(target, PROMPT)
    broken.open()
    other.open()

    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(target_service.engine, "read_window", fail)
        code, message = broken.refused(broken.window_command([1]))
    assert (code, message) == (INTERNAL, "a command failed; the sequence's cache was dropped")
    assert "ZeroDivisionError" in caplog.text
    other.verify([1])
    broken.open()


def test_a_prompt_beyond_the_context_is_refused_before_it_is_read(target: Target) -> None:
    client = Client(target, [TOO_LARGE] * 300, max_length=256)
    code, message = client.refused(client.open_command())
    assert (code, message) == (OUT_OF_RANGE, "300 tokens leave no room for another one in the context of 256")


@pytest.mark.parametrize("lost_mass", [float("nan"), float("inf"), -0.5])
def test_a_lost_mass_that_is_no_probability_is_refused(target: Target, lost_mass: float) -> None:
    client = Client(target, PROMPT, SamplingParams(seed=1), rule=model_pb2.ACCEPTANCE_RULE_REJECTION)
    client.open()
    command = client.window_command([1])
    command.window.distributions.add(token_ids=[1, 2], weights=[3, 4], lost_mass=lost_mass)
    code, message = client.refused(command)
    assert (code, message) == (INVALID, "the lost_mass of a draft distribution must be between 0 and 1")


def test_lists_are_measured_before_they_are_copied(target: Target) -> None:
    client = Client(target, PROMPT)
    for name in ("allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        command = client.open_command()
        getattr(command.open.sampling, name).extend(range(100_000))
        assert client.refused(command) == (INVALID, f"{name} has 100000 entries; at most 1024")
    command = client.open_command()
    command.open.sampling.logit_bias.update({token: float("nan") for token in range(2_000)})
    assert client.refused(command) == (INVALID, "logit_bias has 2000 entries; at most 1024")

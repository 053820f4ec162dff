"""Which look at the logits of a pass decides its rounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specdec.sampling.noise import first_highest_of_rows
from specdec.sampling.params import SamplingParams
from target_service import highest, judge
from tests.plain_decoding import GREEDY, SAMPLED, plain_text
from tests.target_service.driving import Client, Target

LENGTH = 20
BIASED = SamplingParams(temperature=0.0, logit_bias={7: 3})


@pytest.mark.parametrize(
    ("params", "of_passes", "of_windows"),
    [
        # One look for all sequences if it decides two, or the only one; one for each that has no rules; none where rules
        # or noise decide.
        ((GREEDY, GREEDY), [6], []),
        ((GREEDY,), [3], []),
        ((GREEDY, SAMPLED), [], [3]),
        ((GREEDY, SAMPLED, GREEDY), [9], []),
        ((BIASED, GREEDY), [], [3]),
        ((SAMPLED, BIASED), [], []),
    ],
)
def test_rows_are_looked_at_together_where_the_highest_logit_decides(
    monkeypatch: pytest.MonkeyPatch, params: tuple[SamplingParams, ...], of_passes: list[int], of_windows: list[int]
) -> None:
    target = Target()
    clients = [Client(target, [5, 9, 200], each, max_length=LENGTH) for each in params]
    for client in clients:
        client.open()
    seen: dict[str, list[int]] = {"passes": [], "windows": []}

    def counting(where: str) -> Callable[[torch.Tensor], tuple[list[int], list[float]]]:
        def count(rows: torch.Tensor) -> tuple[list[int], list[float]]:
            seen[where].append(len(rows))
            return look(rows)

        return count

    look = first_highest_of_rows
    monkeypatch.setattr(highest, "first_highest_of_rows", counting("passes"))
    monkeypatch.setattr(judge, "first_highest_of_rows", counting("windows"))
    commands = [client.window_command([3, 4]) for client in clients]
    for client, command in zip(clients, commands, strict=True):
        target.tell(client.connection, command)
    target.work()
    for client, command in zip(clients, commands, strict=True):
        (event,) = client.connection.take()
        client.commit(event, command)
    assert seen == {"passes": of_passes, "windows": of_windows}
    for client, each in zip(clients, params, strict=True):
        while len(client.token_ids) < LENGTH:
            client.verify([5, 6, 7])
        assert client.token_ids == plain_text(target.model, [5, 9, 200], each, LENGTH)


def test_a_look_that_fails_fails_nobody_whose_own_rows_can_be_looked_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(rows: torch.Tensor) -> tuple[list[int], list[float]]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(highest, "first_highest_of_rows", fail)
    target = Target()
    clients = [Client(target, [5, 9, number], GREEDY, max_length=LENGTH) for number in (200, 201)]
    for client in clients:
        client.open()
        while len(client.token_ids) < LENGTH:
            client.verify([5, 6])
        assert client.token_ids == plain_text(target.model, client.token_ids[:3], GREEDY, LENGTH)
    assert "could not be looked at together" in caplog.text

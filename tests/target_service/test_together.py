"""Which looks at the logits of a pass decide its rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import grpc
import pytest
import torch

from specdec.runner.runner import PassLogits, Work
from specdec.sampling import chooser as choosing
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.noise import first_highest_of_rows
from specdec.sampling.params import SamplingParams
from target_service import together
from target_service.judge import DraftWindow, Judge
from tests.plain_decoding import GREEDY, SAMPLED, plain_text
from tests.target_service.driving import Client, Target

LENGTH = 20
PROMPT = (5, 9, 200)
BIASED = SamplingParams(temperature=0.0, logit_bias={7: 3})
OTHER_SEED = SamplingParams(temperature=0.8, seed=77)
HOT = SamplingParams(temperature=1.5, top_p=0.9, seed=3)
PENALTIES = SamplingParams(seed=5, frequency_penalty=0.7)
DATA_LOSS, INVALID = grpc.StatusCode.DATA_LOSS.value[0], grpc.StatusCode.INVALID_ARGUMENT.value[0]


class Looks:
    """Counts the rows of each look at several rows, and the rounds that are decided by themselves."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.highest: list[int] = []
        self.chosen: list[int] = []
        self.alone: list[int] = []
        first_highest, choose, decide = first_highest_of_rows, choosing.choose_rows, Judge.decide

        def look(rows: torch.Tensor) -> tuple[list[int], list[float]]:
            self.highest.append(len(rows))
            return first_highest(rows)

        def choose_rows(
            choosers: Sequence[TokenChooser], logits: torch.Tensor, positions: Sequence[int]
        ) -> list[int | None]:
            self.chosen.append(len(logits))
            return choose(choosers, logits, positions)

        def count(judge: Judge, committed: Sequence[int], window: DraftWindow, logits: torch.Tensor) -> object:
            self.alone.append(len(logits))
            return decide(judge, committed, window, logits)

        patch.setattr(together, "first_highest_of_rows", look)
        patch.setattr(together, "choose_rows", choose_rows)
        patch.setattr(Judge, "decide", count)


def play(target: Target, clients: Sequence[Client], drafts: Sequence[Sequence[int]]) -> None:
    """One round of all of them, in one pass."""
    commands = [client.window_command(tokens) for client, tokens in zip(clients, drafts, strict=True)]
    before = len(target.runner.passes)
    for client, command in zip(clients, commands, strict=True):
        target.tell(client.connection, command)
    target.work()
    assert len(target.runner.passes) == before + 1
    for client, command in zip(clients, commands, strict=True):
        (event,) = client.connection.take()
        client.commit(event, command)


@pytest.mark.parametrize(
    ("params", "highest", "chosen", "alone"),
    [
        # One look at all rows if it decides two rounds, or the only one.
        ((GREEDY, GREEDY), [6], [], []),
        ((GREEDY,), [3], [], []),
        ((GREEDY, GREEDY, PENALTIES), [9], [], [3]),
        # Wrong draft tokens: a row of each, of all with the same rules at once.
        ((GREEDY, SAMPLED), [], [1], [3]),
        ((SAMPLED, SAMPLED, SAMPLED), [], [3], []),
        ((SAMPLED, HOT, SAMPLED, BIASED), [], [2, 1, 1], []),
        # What the rules of a request say depends on its text.
        ((PENALTIES, PENALTIES), [], [], [3, 3]),
    ],
)
def test_rows_are_looked_at_together_where_nothing_else_decides(
    monkeypatch: pytest.MonkeyPatch,
    params: tuple[SamplingParams, ...],
    highest: list[int],
    chosen: list[int],
    alone: list[int],
) -> None:
    target = Target()
    clients = [Client(target, PROMPT, each, max_length=LENGTH) for each in params]
    for client in clients:
        client.open()
    looks = Looks(monkeypatch)
    play(target, clients, [[3, 4]] * len(clients))
    assert (looks.highest, looks.chosen, looks.alone) == (highest, chosen, alone)
    for client, each in zip(clients, params, strict=True):
        while len(client.token_ids) < LENGTH:
            client.verify([5, 6, 7])
        assert client.token_ids == plain_text(target.model, PROMPT, each, LENGTH)


def test_windows_are_walked_along_together_as_far_as_they_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target()
    params = [SAMPLED, OTHER_SEED, SAMPLED, SAMPLED]
    texts = [plain_text(target.model, PROMPT, each, LENGTH) for each in params]
    clients = [Client(target, PROMPT, each, max_length=LENGTH) for each in params]
    for client in clients:
        client.open()
    start = len(PROMPT) + 1
    wrong = [(token + 1) % 300 for token in texts[0]]
    # Right to the end, right at first, wrong, and a tree whose second branch is right.
    drafts = [texts[0][start : start + 3], [*texts[1][start : start + 1], 7, 7], [wrong[start], 7], []]
    tree = [wrong[start], texts[3][start], texts[3][start + 1], 9]
    looks = Looks(monkeypatch)
    commands = [client.window_command(tokens) for client, tokens in zip(clients[:3], drafts, strict=False)]
    commands.append(clients[3].window_command(tree, [-1, -1, 1, 0]))
    for client, command in zip(clients, commands, strict=True):
        target.tell(client.connection, command)
    target.work()
    for client, command in zip(clients, commands, strict=True):
        (event,) = client.connection.take()
        client.commit(event, command)
    assert [client.num_accepted[-1] for client in clients] == [3, 1, 0, 2]
    assert (looks.chosen, looks.alone) == ([4, 3, 2, 1], [])
    for client, text in zip(clients, texts, strict=True):
        assert client.token_ids == text[: len(client.token_ids)]


@pytest.mark.parametrize("num_numbers", [1, 1 << 10, 1 << 30])
def test_rows_are_processed_in_parts(monkeypatch: pytest.MonkeyPatch, num_numbers: int) -> None:
    monkeypatch.setattr(together, "_HOST_NUMBERS", num_numbers)
    target = Target()
    clients = [Client(target, PROMPT, each, max_length=LENGTH) for each in [SAMPLED] * 7]
    for client in clients:
        client.open()
    looks = Looks(monkeypatch)
    play(target, clients, [[3]] * 7)
    assert looks.chosen == {1: [1] * 7, 1 << 10: [3, 3, 1], 1 << 30: [7]}[num_numbers]
    assert all(client.token_ids == clients[0].token_ids for client in clients)


def test_rows_without_numbers_fail_their_round_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target()
    params = [GREEDY, GREEDY, SAMPLED, SAMPLED, HOT]
    clients = [Client(target, PROMPT, each, max_length=LENGTH) for each in params]
    for client in clients:
        client.open()
    forward = target.runner.forward

    def broken(batch: Sequence[Work]) -> list[torch.Tensor]:
        logits = forward(batch)
        assert isinstance(logits, PassLogits)
        with torch.inference_mode():
            logits.rows[[1, 9]] = math.nan
        return logits

    monkeypatch.setattr(target.runner, "forward", broken)
    # Row 1 is of the second round, row 9 behind a wrong draft token of the last but one: nobody comes to it.
    commands = [
        client.window_command(tokens) for client, tokens in zip(clients, [[], [], [], [3] * 6, []], strict=True)
    ]
    for client, command in zip(clients, commands, strict=True):
        target.tell(client.connection, command)
    target.work()
    for number, (client, command) in enumerate(zip(clients, commands, strict=True)):
        (event,) = client.connection.take()
        if number == 1:
            assert event.failed.code == DATA_LOSS
        else:
            client.commit(event, command)
            assert client.token_ids == plain_text(target.model, PROMPT, params[number], len(client.token_ids))


def test_rules_that_leave_no_token_fail_their_round_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target()
    only_three = SamplingParams(temperature=0.8, seed=4, allowed_token_ids=(3,))
    clients = [Client(target, PROMPT, each, max_length=LENGTH) for each in (only_three, SAMPLED, only_three)]
    for client in clients:
        client.open()
    forward = target.runner.forward

    def without_three(batch: Sequence[Work]) -> list[torch.Tensor]:
        logits = forward(batch)
        with torch.inference_mode():
            logits[0][:, 3] = -math.inf
        return logits

    monkeypatch.setattr(target.runner, "forward", without_three)
    commands = [client.window_command() for client in clients]
    for client, command in zip(clients, commands, strict=True):
        target.tell(client.connection, command)
    target.work()
    (failed,), *others = (client.connection.take() for client in clients)
    assert (failed.failed.code, "exclude every token" in failed.failed.message) == (INVALID, True)
    for client, command, (event,) in zip(clients[1:], commands[1:], others, strict=True):
        client.commit(event, command)
    assert clients[2].token_ids[-1] == 3


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["first_highest_of_rows", "choose_rows"])
def test_a_look_that_fails_fails_nobody_whose_own_rows_can_be_looked_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, params: SamplingParams, name: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(together, name, fail)
    target = Target()
    clients = [Client(target, [5, 9, number], params, max_length=LENGTH) for number in (200, 201)]
    for client in clients:
        client.open()
        while len(client.token_ids) < LENGTH:
            client.verify([5, 6])
        assert client.token_ids == plain_text(target.model, client.token_ids[:3], params, LENGTH)
    is_asked = name == ("first_highest_of_rows" if params.is_greedy else "choose_rows")
    assert ("could not be decided together" in caplog.text) == is_asked

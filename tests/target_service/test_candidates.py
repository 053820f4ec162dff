"""Candidate windows: the target goes on with the one for the outcome, and nothing about the text changes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import grpc
import pytest

from specdec.checksum import prefix_checksum
from specdec.v1 import model_pb2, target_pb2
from tests.plain_decoding import GREEDY, SAMPLED
from tests.target_service.driving import Client, Target, generate

PROMPT = (5, 9, 200)
LENGTH = 24
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]

Candidate = tuple[int, int, Sequence[int]]
"""Accepted tokens, next token, draft tokens."""


@functools.cache
def text() -> list[int]:
    return generate(Client(Target(), PROMPT, SAMPLED, max_length=LENGTH))


@pytest.fixture
def client() -> Client:
    """An open sequence with one token."""
    client = Client(Target(), PROMPT, SAMPLED, max_length=LENGTH)
    client.open()
    return client


def candidates_command(client: Client, *windows: Candidate, ahead: int = 1) -> target_pb2.TargetCommand:
    """For the round behind the last one asked for, or behind one that is under way; both stand on what is committed."""
    return target_pb2.TargetCommand(
        sequence_id=client.sequence_id,
        candidates=target_pb2.CandidateWindows(
            epoch=client.epoch,
            round=client.round + ahead,
            base_length=len(client.token_ids),
            checksum=prefix_checksum(client.token_ids),
            windows=[
                target_pb2.CandidateWindow(num_accepted_tokens=accepted, next_token_id=token, token_ids=drafts)
                for accepted, token, drafts in windows
            ],
        ),
    )


def right(client: Client, count: int, offset: int = 0) -> list[int]:
    """What the target will write behind the committed tokens."""
    first = len(client.token_ids) + offset
    return text()[first : first + count]


def take_over(client: Client, event: target_pb2.TargetEvent, drafts: Sequence[int]) -> target_pb2.Verdict:
    """A verdict on a candidate."""
    client.round += 1
    window = target_pb2.Window(token_ids=drafts)
    return client.commit(event, target_pb2.TargetCommand(window=window))


def finish(client: Client) -> list[int]:
    while len(client.token_ids) < LENGTH:
        client.verify([1, 2])
    return client.token_ids


def test_after_a_hit_the_target_goes_straight_on(client: Client) -> None:
    drafts = right(client, 3)
    behind = right(client, 4, offset=4)
    window = client.window_command(drafts)
    wrong = (1, right(client, 2)[1], [7, 7])
    hit = (3, right(client, 4)[3], behind)
    passes = len(client.target.runner.passes)
    first, second = client.target.ask(client.connection, window, candidates_command(client, wrong, hit))
    assert len(client.target.runner.passes) == passes + 2
    verdict = client.commit(first, window)
    assert len(verdict.accepted_nodes) == 3
    assert not verdict.HasField("candidate")
    verdict = take_over(client, second, behind)
    assert (verdict.candidate, len(verdict.accepted_nodes)) == (1, 4)
    assert finish(client) == text()


def test_a_wrong_draft_in_a_candidate_is_rejected_as_in_any_window(client: Client) -> None:
    window = client.window_command([])
    behind = [*right(client, 1, offset=1), 0, 0]
    command = candidates_command(client, (0, right(client, 1)[0], behind))
    first, second = client.target.ask(client.connection, window, command)
    client.commit(first, window)
    assert len(take_over(client, second, behind).accepted_nodes) == 1
    assert finish(client) == text()


def test_after_a_miss_it_waits_to_be_asked(client: Client) -> None:
    window = client.window_command(right(client, 2))
    command = candidates_command(client, (2, 0, [1]), (0, 1, []), (1, right(client, 2)[1], [3]))
    (event,) = client.target.ask(client.connection, window, command)
    client.commit(event, window)
    assert finish(client) == text()


def test_candidates_that_come_after_the_verdict_are_as_good(client: Client) -> None:
    window = client.window_command(right(client, 1))
    behind = right(client, 2, offset=2)
    late = candidates_command(client, (1, right(client, 2)[1], behind))
    (first,) = client.target.ask(client.connection, window)
    (second,) = client.target.ask(client.connection, late)
    client.commit(first, window)
    assert take_over(client, second, behind).candidate == 0
    assert finish(client) == text()


def test_hits_follow_each_other_without_a_word_of_the_asker(client: Client) -> None:
    window = client.window_command([])
    client.target.tell(client.connection, window)
    under_way: list[int] = []
    for number in range(5):
        count = len(under_way)
        outcome = (count, right(client, 1, offset=count)[0])
        behind = right(client, 2, offset=count + 1)
        ahead = 2 if number else 1
        client.target.tell(client.connection, candidates_command(client, (*outcome, behind), ahead=ahead))
        assert client.target.engine.step(), "the next round is under way"
        (event,) = client.connection.take()
        if number == 0:
            client.commit(event, window)
        else:
            take_over(client, event, under_way)
        assert client.num_accepted[-1] == count
        under_way = behind
    client.target.work()
    (event,) = client.connection.take()
    take_over(client, event, under_way)
    assert finish(client) == text()


@pytest.mark.parametrize("asked_first", [True, False])
def test_both_verdicts_are_repeated_when_they_are_asked_again(client: Client, asked_first: bool) -> None:
    window = client.window_command([])
    behind = right(client, 2, offset=1)
    first, second = client.target.ask(
        client.connection, window, candidates_command(client, (0, right(client, 1)[0], behind))
    )
    passes = len(client.target.runner.passes)
    client.commit(first, window)
    again = client.window_command(behind)
    client.round -= 1
    order = [window, again] if asked_first else [again, window]
    expected = [first, second] if asked_first else [second, first]
    assert client.target.ask(client.connection, *order) == expected
    assert len(client.target.runner.passes) == passes
    take_over(client, second, behind)
    assert finish(client) == text()


def test_the_window_of_a_round_that_is_under_way_is_not_judged_a_second_time(client: Client) -> None:
    window = client.window_command([])
    behind = right(client, 2, offset=1)
    client.target.tell(client.connection, window, candidates_command(client, (0, right(client, 1)[0], behind)))
    client.target.engine.step()
    (first,) = client.connection.take()
    client.commit(first, window)
    (second,) = client.target.ask(client.connection, client.window_command([0]))
    client.round -= 1
    assert take_over(client, second, behind).candidate == 0
    assert finish(client) == text()


def test_candidates_of_an_epoch_that_is_over_are_dropped(client: Client) -> None:
    old = candidates_command(client, (0, right(client, 1)[0], [1]))
    client.open()
    assert client.target.ask(client.connection, old) == []
    assert finish(client) == text()


def test_the_first_candidates_of_a_round_count(client: Client) -> None:
    window = client.window_command([])
    token, behind = right(client, 1)[0], right(client, 2, offset=1)
    commands = [candidates_command(client, (0, token, behind)), candidates_command(client, (0, token, [0, 0]))]
    first, second = client.target.ask(client.connection, window, *commands)
    client.commit(first, window)
    assert len(take_over(client, second, behind).accepted_nodes) == 2
    # Nor do any for a round that is over.
    assert client.target.ask(client.connection, *commands) == []
    assert finish(client) == text()


def test_a_close_in_flight_ends_the_round_that_was_gone_on_with(client: Client) -> None:
    window = client.window_command([])
    behind = right(client, 2, offset=1)
    command = candidates_command(client, (0, right(client, 1)[0], behind))
    client.target.tell(client.connection, window, command)
    client.target.engine.step()
    assert len(client.connection.take()) == 1
    passes = len(client.target.runner.passes)
    assert client.target.ask(client.connection, client.close_command()) == []
    assert len(client.target.runner.passes) == passes
    code, _ = client.refused(candidates_command(client, (0, 1, [])))
    assert code == PRECONDITION


def test_a_candidate_is_cut_where_the_sequence_ends() -> None:
    target = Target()
    client = Client(target, PROMPT, SAMPLED, max_length=LENGTH)
    client.open()
    drafts = right(client, LENGTH - len(client.token_ids) - 4)
    window = client.window_command(drafts)
    outcome = (len(drafts), text()[-4])
    behind = [*text()[-3:-1], 1, 1, 1]
    first, second = target.ask(client.connection, window, candidates_command(client, (*outcome, behind)))
    client.commit(first, window)
    verdict = take_over(client, second, behind)
    assert (verdict.num_judged_tokens, verdict.committed_length) == (2, LENGTH)
    assert client.token_ids == text()


def test_nothing_follows_the_last_token() -> None:
    target = Target()
    client = Client(target, PROMPT, SAMPLED, max_length=LENGTH)
    client.open()
    client.verify(right(client, 8))
    drafts = right(client, LENGTH - len(client.token_ids) - 1)
    window = client.window_command(drafts)
    command = candidates_command(client, (len(drafts), text()[-1], [1]))
    (event,) = target.ask(client.connection, window, command)
    client.commit(event, window)
    assert client.token_ids == text()


def test_it_goes_on_past_a_stop_token_and_the_asker_cuts() -> None:
    # Which token ends the text is for the orchestrator to say; both must know what is under way from the verdict alone.
    client = Client(Target(), PROMPT, GREEDY, max_length=LENGTH)
    client.open()
    plain = generate(Client(Target(), PROMPT, GREEDY, max_length=LENGTH))
    window = client.window_command([])
    stop = plain[len(client.token_ids)]
    first, second = client.target.ask(client.connection, window, candidates_command(client, (0, stop, [])))
    client.commit(first, window)
    take_over(client, second, [])
    assert client.token_ids == plain[: len(client.token_ids)]


@pytest.mark.parametrize("rule", [model_pb2.ACCEPTANCE_RULE_REJECTION, model_pb2.ACCEPTANCE_RULE_BLOCK])
def test_rules_that_hang_on_the_draft_have_no_candidates_but_at_temperature_0(
    rule: model_pb2.AcceptanceRule.ValueType,
) -> None:
    client = Client(Target(), PROMPT, SAMPLED, rule=rule)
    client.open()
    code, reason = client.refused(candidates_command(client, (0, 1, [])))
    assert (code, "coupled" in reason) == (INVALID, True)
    greedy = Client(Target(), PROMPT, GREEDY, rule=rule, max_length=LENGTH)
    greedy.open()
    plain = generate(Client(Target(), PROMPT, GREEDY, max_length=LENGTH))
    start = len(greedy.token_ids)
    window = greedy.window_command([])
    command = candidates_command(greedy, (0, plain[start], plain[start + 1 : start + 3]))
    first, second = greedy.target.ask(greedy.connection, window, command)
    greedy.commit(first, window)
    assert len(take_over(greedy, second, plain[start + 1 : start + 3]).accepted_nodes) == 2


Wrong = Callable[[target_pb2.CandidateWindows], object]


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (lambda sent: sent.windows.clear(), INVALID, "1 to 16"),
        (
            lambda sent: sent.windows.extend([target_pb2.CandidateWindow(next_token_id=n) for n in range(16)]),
            INVALID,
            "16",
        ),
        (lambda sent: sent.windows.append(sent.windows[0]), INVALID, "same outcome"),
        (lambda sent: sent.windows[0].token_ids.extend([1] * 17), INVALID, "draft tokens"),
        (lambda sent: sent.windows[0].token_ids.append(1 << 30), INVALID, "vocabulary"),
        (lambda sent: setattr(sent.windows[0], "next_token_id", 1 << 30), INVALID, "vocabulary"),
        (lambda sent: setattr(sent.windows[0], "num_accepted_tokens", 17), INVALID, "accepted"),
        (lambda sent: setattr(sent, "round", 0), INVALID, "round"),
        (lambda sent: setattr(sent, "round", sent.round + 1), PRECONDITION, "asked for"),
        (lambda sent: setattr(sent, "base_length", sent.base_length + 1), PRECONDITION, "stands on"),
        (lambda sent: setattr(sent, "checksum", sent.checksum ^ 1), PRECONDITION, "checksum"),
        (lambda sent: setattr(sent, "epoch", 9), PRECONDITION, "epoch"),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_what_cannot_be_is_refused(client: Client, change: Wrong, code: int, reason: str, *, is_late: bool) -> None:
    window = client.window_command([])
    command = candidates_command(client, (0, 300, [1, 2]))
    change(command.candidates)
    if is_late:
        client.target.ask(client.connection, window)
    else:
        client.target.tell(client.connection, window)
    client.target.tell(client.connection, command)
    event = client.connection.take()[-1]
    assert event.WhichOneof("event") == "failed"
    assert (event.failed.code, event.round) == (code, command.candidates.round)
    assert reason in event.failed.message
    # Nobody else notices, and the truth opens it again.
    client.round = command.candidates.round + 1
    client.epoch = max(client.epoch, command.candidates.epoch)
    client.open()
    assert finish(client) == text()


def test_a_window_that_is_a_tree_has_no_candidates(client: Client) -> None:
    first, second = right(client, 2)
    window = client.window_command([0, first, second], [-1, -1, 1])
    command = candidates_command(client, (2, right(client, 3)[2], [1]))
    (event,) = client.target.ask(client.connection, window, command)
    verdict = client.commit(event, window)
    assert list(verdict.accepted_nodes) == [1, 2]
    assert finish(client) == text()

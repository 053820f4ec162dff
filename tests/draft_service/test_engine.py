"""The draft engine: commands, outcomes, batching, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
import torch

from draft_service.drafters.ngram import NgramDrafter
from specdec.sampling.params import SamplingParams
from specdec.telemetry import names
from specdec.v1 import draft_pb2, model_pb2, sampling_pb2
from tests.draft_service.driving import Client, DraftConnection, Engine, ModelEngine
from tests.plain_decoding import GREEDY, SAMPLED, plain_text
from tests.recorded_spans import recorded_spans

PROMPT = (5, 9, 200)
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
INTERNAL = grpc.StatusCode.INTERNAL.value[0]


@pytest.fixture
def engine() -> ModelEngine:
    return ModelEngine()


@pytest.fixture
def client(engine: ModelEngine) -> Client:
    """An open sequence with a proposal of 4 tokens."""
    client = Client(engine, PROMPT, SAMPLED)
    client.open(4)
    return client


def fresh_proposal(client: Client, num_draft_tokens: int) -> list[int]:
    """What a service proposes that knows nothing but the truth."""
    fresh = Client(ModelEngine(), client.token_ids, client.params)
    fresh.prompt_length = client.prompt_length
    return list(fresh.open(num_draft_tokens).token_ids)


def test_an_open_without_drafts_prefills_only(engine: ModelEngine) -> None:
    client = Client(engine, PROMPT, SAMPLED)
    assert engine.ask(client.connection, client.open_command(0)) == []
    assert engine.runner.passes == [[3]]
    proposal = client.commit(0, 17, 2)
    assert list(proposal.token_ids) == fresh_proposal(client, 2)
    assert engine.runner.passes == [[3], [1], [1]]


def test_a_commit_without_drafts_is_only_noted(engine: ModelEngine, client: Client) -> None:
    engine.runner.passes.clear()
    assert engine.ask(client.connection, client.commit_command(2, 17, 0)) == []
    assert engine.ask(client.connection, client.commit_command(0, 18, 0)) == []
    assert engine.runner.passes == []
    assert list(client.commit(0, 19, 3).token_ids) == fresh_proposal(client, 3)
    assert engine.runner.passes == [[3], [1], [1]]


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
@pytest.mark.parametrize("num_draft_tokens", [0, 3])
def test_an_outcome_replaces_a_draft_in_the_making(
    engine: ModelEngine, client: Client, num_steps: int, num_draft_tokens: int
) -> None:
    # The orchestrator went on without the proposal; nothing of it may be answered or stay in the cache.
    engine.tell(client.connection, client.commit_command(1, 17, 4))
    for _ in range(num_steps):
        assert engine.engine.step()
    engine.tell(client.connection, client.commit_command(0, 18, num_draft_tokens))
    engine.work()
    events = client.connection.take()
    assert len(events) == bool(num_draft_tokens)
    for event in events:
        assert list(client.take(event, 3).token_ids) == fresh_proposal(client, 3)
    assert list(client.commit(0, 19, 2).token_ids) == fresh_proposal(client, 2)


def test_an_outcome_in_the_middle_of_the_prefill_goes_on_with_it() -> None:
    engine = ModelEngine(max_batch_rows=10)
    client = Client(engine, list(range(2, 27)), SAMPLED)
    engine.tell(client.connection, client.open_command(0))
    assert engine.engine.step()
    proposal = client.commit(0, 17, 2)
    assert engine.runner.passes == [[10], [10], [6], [1]]
    assert list(proposal.token_ids) == fresh_proposal(client, 2)


def test_a_prefill_stays_behind_running_sequences_when_an_outcome_replaces_it() -> None:
    engine = ModelEngine(max_batch_rows=10)
    running, client = Client(engine, PROMPT, SAMPLED), Client(engine, list(range(2, 27)), SAMPLED)
    running.open(3)
    engine.runner.passes.clear()
    engine.tell(client.connection, client.open_command(0))
    assert engine.engine.step()
    engine.tell(client.connection, client.commit_command(0, 17, 1))
    engine.tell(running.connection, running.commit_command(3, 17, 2))
    engine.work()
    assert engine.runner.passes == [[10], [2, 8], [1, 8]]


def test_a_sequence_that_is_prefilled_no_longer_stands_behind() -> None:
    engine = ModelEngine(max_batch_rows=2)
    running, client = Client(engine, (7,), SAMPLED), Client(engine, (8,), SAMPLED)
    running.open(1)
    engine.tell(client.connection, client.open_command(3))
    assert engine.engine.step()
    engine.runner.passes.clear()
    engine.tell(running.connection, running.commit_command(1, 17, 1))
    engine.work()
    # The second token of the new sequence comes before the two rows of the one that asked later.
    assert engine.runner.passes == [[1, 1], [1, 1]]


def test_drafting_is_batched_and_each_is_answered_when_it_is_ready(engine: ModelEngine) -> None:
    clients = [Client(engine, prompt, SAMPLED) for prompt in (PROMPT, (7,), (3, 3, 3, 3))]
    for client, num_draft_tokens in zip(clients, (1, 3, 2), strict=True):
        engine.tell(client.connection, client.open_command(num_draft_tokens))
    answered = []
    while engine.engine.step():
        answered.append([len(client.connection.batches) for client in clients])
    assert answered == [[1, 0, 0], [1, 0, 1]]
    assert engine.runner.passes == [[3, 1, 4], [1, 1], [1]]
    for client in clients:
        (event,) = client.connection.take()
        proposal = client.take(event, 3)
        text = plain_text(engine.model, client.token_ids, SAMPLED, len(client.token_ids) + 3)
        assert list(proposal.token_ids) == text[len(client.token_ids) :][: len(proposal.token_ids)]
        assert (proposal.timings.batch_sequences, proposal.timings.batch_rows) == (3, 8)
        assert proposal.timings.compute_microseconds > 0


def test_answers_of_one_stream_travel_together(engine: ModelEngine) -> None:
    connection = DraftConnection()
    clients = [Client(engine, PROMPT, connection=connection) for _ in range(3)]
    engine.tell(connection, *(client.open_command(2) for client in clients))
    engine.work()
    assert [len(batch) for batch in connection.batches] == [3]


def spoiled(field: str, change: Callable[[int], int]) -> Callable[[draft_pb2.DraftCommit], None]:
    return lambda commit: setattr(commit, field, change(getattr(commit, field)))


@pytest.mark.parametrize(
    ("spoil", "code", "reason"),
    [
        (
            spoiled("num_accepted_tokens", lambda _: 5),
            PRECONDITION,
            "5 tokens were accepted, but the last proposal had 4",
        ),
        (spoiled("num_accepted_tokens", lambda _: 1), INVALID, "committed_length must be base_length"),
        (spoiled("committed_length", lambda length: length + 1), INVALID, "committed_length must be base_length"),
        (spoiled("checksum", lambda checksum: checksum ^ 1), PRECONDITION, "another checksum"),
        (spoiled("next_token_id", lambda _: 320), INVALID, "next_token_id has an id outside the vocabulary of 320"),
        (spoiled("next_token_id", lambda token: token + 1), PRECONDITION, "another checksum"),
        (spoiled("epoch", lambda _: 2), PRECONDITION, "epoch 2 is not open; the open one is 1"),
        (spoiled("num_draft_tokens", lambda _: 9), INVALID, "num_draft_tokens is 9; at most 8"),
        (spoiled("num_lookup_tokens", lambda _: 9), INVALID, "num_lookup_tokens is 9; at most 8"),
    ],
)
def test_an_outcome_that_does_not_fit_is_refused_and_repaired_by_opening_again(
    engine: ModelEngine, client: Client, spoil: Callable[[draft_pb2.DraftCommit], None], code: int, reason: str
) -> None:
    command = client.commit_command(2, 17, 3)
    spoil(command.commit)
    engine.runner.passes.clear()
    found = client.refused(command)
    assert found[0] == code
    assert reason in found[1]
    assert engine.runner.passes == []
    assert engine.drafter._states == {}
    assert client.refused(client.commit_command(0, 18, 3))[0] == PRECONDITION
    assert list(client.open(3).token_ids) == fresh_proposal(client, 3)


def test_an_outcome_on_another_base_is_refused(client: Client) -> None:
    # B32: a late outcome, of a round that is over.
    late = client.commit_command(2, 17, 3)
    client.engine.ask(client.connection, late)
    code, message = client.refused(late)
    assert code == PRECONDITION
    assert "2 tokens were accepted" in message or "committed here" in message


def test_an_outcome_is_counted_once_even_if_nothing_was_accepted(client: Client) -> None:
    late = client.commit_command(0, 17, 0)
    client.engine.ask(client.connection, late)
    code, message = client.refused(late)
    assert (code, message) == (
        PRECONDITION,
        "the commit stands on 3 tokens, but 4 are committed here; open the sequence again",
    )


def test_accepted_tokens_are_those_of_the_last_proposal(engine: ModelEngine, client: Client) -> None:
    engine.tell(client.connection, client.commit_command(0, 17, 4))
    engine.engine.step()
    # The proposal of this round was never sent, so nothing of it can have been accepted.
    client.proposed = [1]
    assert "the last proposal had 0" in client.refused(client.commit_command(1, 18, 4))[1]


def test_a_proposal_says_where_it_comes_from_on_its_span_too(engine: ModelEngine, client: Client) -> None:
    trace_context = model_pb2.TraceContext(traceparent=f"00-{'1' * 32}-{'2' * 16}-01")
    with recorded_spans() as spans:
        for num_draft_tokens, source in ((3, draft_pb2.DRAFT_SOURCE_MODEL), (0, None)):
            command = client.commit_command(0, 17, num_draft_tokens)
            command.commit.trace_context.CopyFrom(trace_context)
            events = engine.ask(client.connection, command)
            assert [event.proposal.source for event in events] == ([] if source is None else [source])
    (span,) = spans.get_finished_spans()
    assert (span.attributes or {})[names.DRAFT_SOURCE] == "model"


def test_a_proposal_without_tokens_has_no_source() -> None:
    engine = Engine(NgramDrafter(min_length=2, max_length=3, max_num_draft_tokens=4, max_num_sequences=4))
    assert Client(engine, [1, 2, 1, 2]).open(4).source == draft_pb2.DRAFT_SOURCE_NGRAM
    assert Client(engine, [1, 2, 3]).open(4).source == draft_pb2.DRAFT_SOURCE_UNSPECIFIED


def test_messages_of_older_epochs_are_dropped(engine: ModelEngine, client: Client) -> None:
    late_commit = client.commit_command(0, 17, 3)
    late_open = client.open_command(3)
    proposal = client.open(3)
    assert engine.ask(client.connection, late_commit, late_open) == []
    assert list(proposal.token_ids) == fresh_proposal(client, 3)
    assert list(client.commit(1, 18, 2).token_ids) == fresh_proposal(client, 2)


def test_opening_again_drops_what_was_in_the_making(engine: ModelEngine, client: Client) -> None:
    engine.tell(client.connection, client.commit_command(0, 17, 4))
    engine.engine.step()
    assert list(client.open(2).token_ids) == fresh_proposal(client, 2)
    assert len(engine.drafter._states) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_ids": []}, "token_ids is empty"),
        ({"token_ids": [320]}, "token_ids has an id outside the vocabulary of 320"),
        ({"prompt_length": 0}, "prompt_length is 0; it must be between 1 and the 3 tokens sent"),
        ({"prompt_length": 4}, "prompt_length is 4"),
        ({"acceptance_rule": model_pb2.ACCEPTANCE_RULE_UNSPECIFIED}, "acceptance_rule"),
        ({"sampling": sampling_pb2.SamplingParams()}, "sampling.temperature is not set"),
        ({"sampling": SamplingParams(allowed_token_ids=(320,)).to_proto()}, "allowed_token_ids"),
        ({"num_draft_tokens": 9}, "num_draft_tokens is 9; at most 8 are proposed at once"),
        ({"epoch": 0}, "epoch is 0"),
        ({"tenant": b"acme"}, "tenant has 4 bytes; it must be empty or a hash of 32"),
        ({"tenant": b"x" * 33}, "tenant has 33 bytes"),
    ],
)
def test_an_open_that_means_nothing_is_refused(engine: ModelEngine, changes: dict[str, object], reason: str) -> None:
    client = Client(engine, PROMPT)
    command = client.open_command(4)
    fields = {field.name: getattr(command.open, field.name) for field in command.open.DESCRIPTOR.fields}
    command.open.CopyFrom(draft_pb2.DraftOpen(**{**fields, **changes}))
    code, message = client.refused(command)
    assert code == INVALID
    assert reason in message
    assert engine.engine.num_sequences == 0
    assert engine.runner.passes == []


def test_a_command_without_a_kind_is_refused(engine: ModelEngine) -> None:
    client = Client(engine, PROMPT)
    command = draft_pb2.DraftCommand(sequence_id=client.sequence_id)
    assert client.refused(command) == (INVALID, "a command is neither open, commit, features nor close")


def test_limits_and_draining() -> None:
    engine = ModelEngine(max_num_sequences=1)
    client, other = Client(engine, PROMPT), Client(engine, PROMPT)
    client.open(1)
    assert other.refused(other.open_command(1)) == (EXHAUSTED, "1 sequences are open, which is the limit")
    engine.engine.is_draining = True
    client.commit(1, 7, 1)
    assert other.refused(other.open_command(1))[0] == UNAVAILABLE


def test_the_end_of_a_sequence_or_stream_frees_what_was_kept(engine: ModelEngine) -> None:
    connection = DraftConnection()
    mine = [Client(engine, PROMPT, connection=connection) for _ in range(3)]
    other = Client(engine, PROMPT)
    for client in (*mine, other):
        client.open(2)
    engine.tell(connection, mine[0].close_command(), mine[0].close_command())
    assert len(engine.drafter._states) == engine.engine.num_sequences == 3
    engine.tell(connection, mine[1].commit_command(0, 7, 4))
    engine.engine.step()
    engine.tell(connection, None)
    assert len(engine.drafter._states) == engine.engine.num_sequences == 1
    assert not engine.engine.step()
    assert connection.take() == []
    other.commit(1, 7, 1)


@pytest.mark.parametrize(
    ("problem", "code"), [(torch.OutOfMemoryError("out of memory"), EXHAUSTED), (RuntimeError("boom"), INTERNAL)]
)
def test_a_pass_that_fails_fails_its_sequences_and_no_others(
    engine: ModelEngine, problem: Exception, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    drafting, idle = Client(engine, PROMPT, SAMPLED), Client(engine, PROMPT, SAMPLED)
    drafting.open(2)
    idle.open(2)
    engine.runner.problem = problem
    assert drafting.refused(drafting.commit_command(0, 17, 2))[0] == code
    assert "a forward pass failed" in caplog.text
    engine.runner.problem = None
    assert len(engine.drafter._states) == 1
    assert list(idle.commit(0, 17, 2).token_ids) == fresh_proposal(idle, 2)
    assert list(drafting.open(2).token_ids) == fresh_proposal(drafting, 2)


def test_failures_far_apart_are_forgiven(engine: ModelEngine, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(engine, PROMPT, GREEDY)
    for _ in range(5):
        engine.runner.problem = RuntimeError("hiccup")
        assert client.refused(client.open_command(2))[0] == INTERNAL
        engine.runner.problem = None
        client.open(2)
    assert caplog.text.count("a forward pass failed") == 5


def test_an_engine_whose_passes_keep_failing_gives_up(engine: ModelEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine.runner.problem = RuntimeError("device lost")
    client = Client(engine, PROMPT, GREEDY)
    for _ in range(2):
        assert client.refused(client.open_command(2))[0] == INTERNAL
    engine.tell(client.connection, client.open_command(2))
    with pytest.raises(RuntimeError, match="device lost"):
        engine.work()
    assert caplog.text.count("a forward pass failed") == 3

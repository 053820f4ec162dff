"""The target loses sequences, lies, hangs or goes away: the text is the same, or the request ends in time."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2

from specdec.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    Refusal,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    from_status,
)
from specdec.telemetry import names
from specdec.tokenizer_files import tokenizer_hash
from specdec.v1 import generation_pb2, target_pb2
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import PROMPT, Running, request, running
from tests.orchestrator.serving import serving, until
from tests.orchestrator.table import plain_continuation, table_token
from tests.tiny_models import tiny_tokenizer_files

EXPECTED = plain_continuation(PROMPT, 24)


async def test_the_target_is_restarted_in_mid_generation(short_pauses: None) -> None:
    """B33: the same text, from a target that has never heard of the sequence."""
    target, draft = FakeTarget(), FakeDraft()
    target.delay_seconds = 0.005
    async with (
        serving(draft) as draft_port,
        serving(target) as port,
        running(f"127.0.0.1:{port}", f"127.0.0.1:{draft_port}") as run,
    ):
        generating = asyncio.create_task(run.generate(request(max_new_tokens=200)))
        await until(lambda: len(target.commands) > 20)
        target.break_streams()
        await until(lambda: not run.service.targets.is_available)
        result = await generating
    assert result.token_ids == plain_continuation(PROMPT, 200)
    assert run.counting.by_attribute(names.RESYNCS)["target"] == 1
    assert not target.refusals
    assert not draft.refusals


@pytest.mark.parametrize("failure", [FailedPreconditionError("unknown"), ResourceExhaustedError("out of memory")])
async def test_a_sequence_that_the_target_lost_is_opened_again(
    failure: FailedPreconditionError | ResourceExhaustedError, short_pauses: None
) -> None:
    target, draft = FakeTarget(), FakeDraft()
    seen = 0

    def lose_some(command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        nonlocal seen
        seen += 1
        if command.HasField("window") and seen % 3 == 0:
            target.sequences.pop(command.sequence_id)
            event.failed.CopyFrom(failure.to_status())
        return [event]

    target.change = lose_some
    async with running(target, draft) as run:
        result = await run.generate(request(max_new_tokens=60))
        assert result.token_ids == plain_continuation(PROMPT, 60)
        assert run.counting.by_attribute(names.RESYNCS)["target"] > 3
        epochs = [command.open.epoch for command in target.commands if command.HasField("open")]
        assert epochs == list(range(1, len(epochs) + 1))
    assert not target.refusals
    assert not draft.refusals


@pytest.mark.parametrize(
    "change",
    [
        lambda verdict: setattr(verdict, "base_length", verdict.base_length - 1),
        lambda verdict: setattr(verdict, "committed_length", verdict.committed_length + 1),
        lambda verdict: setattr(verdict, "num_judged_tokens", 9),
        lambda verdict: setattr(verdict, "next_token_id", 320),
        lambda verdict: verdict.accepted_nodes.append(7),
        lambda verdict: verdict.accepted_nodes.insert(0, 1),
    ],
)
async def test_an_impossible_verdict_is_never_committed(
    change: Callable[[target_pb2.Verdict], None], short_pauses: None
) -> None:
    target, draft = FakeTarget(), FakeDraft(table_token)

    def lie_once(command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        if command.HasField("window") and command.window.round == 2:
            change(event.verdict)
        return [event]

    target.change = lie_once
    async with running(target, draft) as run:
        result = await run.generate()
        assert result.token_ids == EXPECTED
        assert run.counting.by_attribute(names.RESYNCS)["target"] == 1


async def refused(run: Running, asked: generation_pb2.GenerateRequest | None = None) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await asyncio.wait_for(run.generate(asked), 10)
    return refusal.value


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (ResourceExhaustedError("full"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (UnavailableError("shutting down"), grpc.StatusCode.UNAVAILABLE),
        (OutOfRangeError("too long"), grpc.StatusCode.OUT_OF_RANGE),
        (InvalidArgumentError("no"), grpc.StatusCode.INVALID_ARGUMENT),
        (UnimplementedError("no such rule"), grpc.StatusCode.UNIMPLEMENTED),
    ],
)
async def test_a_request_that_the_target_does_not_take_is_refused_with_its_code(
    refusal: Refusal, code: grpc.StatusCode
) -> None:
    target, draft = FakeTarget(), FakeDraft()

    def refuse(_: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        event.failed.CopyFrom(refusal.to_status())
        return [event]

    target.change = refuse
    async with running(target, draft) as run:
        assert (await refused(run)).code() is code
        assert len([command for command in target.commands if command.HasField("open")]) == 1
        await until(lambda: not draft.sequences)


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal("a bug"), grpc.StatusCode.UNAVAILABLE),
        (DataLossError("the model's logits are not finite numbers"), grpc.StatusCode.DATA_LOSS),
    ],
)
async def test_a_target_that_is_at_fault_is_left_for_another_one(
    refusal: Refusal, code: grpc.StatusCode, short_pauses: None
) -> None:
    broken, good = FakeTarget(), FakeTarget()

    def fail(_: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        event.failed.CopyFrom(refusal.to_status())
        return [event]

    broken.change = fail
    async with serving(broken) as port:
        async with serving(good) as other_port, running(f"127.0.0.1:{port},127.0.0.1:{other_port}") as run:
            await until(lambda: sum(link.is_available for link in run.service.targets.links) == 2)
            for _ in range(4):
                assert (await run.generate()).token_ids == EXPECTED
        async with running(f"127.0.0.1:{port}") as run:
            error = await refused(run)
    assert error.code() is code
    assert str(refusal) in str(error.details())


async def test_the_client_is_told_when_to_try_again() -> None:
    target = FakeTarget()

    def refuse(_: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        event.failed.CopyFrom(ResourceExhaustedError("full", 2.5).to_status())
        return [event]

    target.change = refuse
    async with running(target) as run:
        details = dict((await refused(run)).trailing_metadata())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(details)
    assert (status.code, status.message) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "full")
    assert from_status(status).retry_seconds == 2.5


async def test_a_running_sequence_waits_for_room_at_the_target(short_pauses: None) -> None:
    target = FakeTarget()
    refusals = [ResourceExhaustedError("full", 0.03), UnavailableError("shutting down")] * 4

    def lose_then_refuse(
        command: target_pb2.TargetCommand, event: target_pb2.TargetEvent
    ) -> Iterable[target_pb2.TargetEvent]:
        if command.window.round == 3:
            event.failed.CopyFrom(FailedPreconditionError("lost").to_status())
        elif command.open.epoch > 1 and refusals:
            event.failed.CopyFrom(refusals.pop().to_status())
        return [event]

    target.change = lose_then_refuse
    async with running(target) as run:
        assert (await run.generate()).token_ids == EXPECTED
        assert not refusals


async def test_a_target_that_stays_full_ends_a_running_request_in_time(short_pauses: None) -> None:
    target = FakeTarget()

    def lose_and_refuse(
        command: target_pb2.TargetCommand, event: target_pb2.TargetEvent
    ) -> Iterable[target_pb2.TargetEvent]:
        if command.window.round == 3:
            event.failed.CopyFrom(FailedPreconditionError("lost").to_status())
        elif command.open.epoch > 1:
            event.failed.CopyFrom(ResourceExhaustedError("full").to_status())
        return [event]

    target.change = lose_and_refuse
    async with running(target, round_timeout_seconds=0.4) as run:
        failure = await refused(run)
        assert (failure.code(), failure.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        assert 2 < target.commands[-2].open.epoch < 10


async def test_a_sequence_that_brings_the_target_down_each_time_is_given_up(short_pauses: None) -> None:
    target = FakeTarget()

    def fail(command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        if command.HasField("window") and command.window.round > 2:
            event.failed.CopyFrom(FailedPreconditionError("lost").to_status())
        return [event]

    target.change = fail
    async with running(target) as run:
        failure = await refused(run)
        assert failure.code() is grpc.StatusCode.UNAVAILABLE
        assert "5 times in a row" in str(failure.details())
        assert len([command for command in target.commands if command.HasField("open")]) == 5
        assert run.service.targets.num_sequences == 0


async def test_a_frozen_target_ends_the_request_in_time() -> None:
    target = FakeTarget()
    async with running(target, round_timeout_seconds=0.3) as run:
        target.is_frozen = True
        failure = await refused(run)
        assert failure.code() is grpc.StatusCode.UNAVAILABLE
        assert "0.3 s" in str(failure.details())
        target.is_frozen = False
        assert (await run.generate()).token_ids == EXPECTED


async def test_a_target_that_stays_away_ends_the_request_in_time() -> None:
    target = FakeTarget()
    target.delay_seconds = 0.01
    async with AsyncExitStack() as life:
        port = await life.enter_async_context(serving(target))
        async with running(f"127.0.0.1:{port}", round_timeout_seconds=0.5) as run:
            generating = asyncio.create_task(refused(run, request(max_new_tokens=400, num_draft_tokens=0)))
            await until(lambda: len(target.commands) > 5)
            await life.aclose()
            failure = await generating
            assert failure.code() is grpc.StatusCode.UNAVAILABLE
            assert "not available" in str(failure.details())


async def test_a_target_with_another_tokenizer_does_not_go_on_with_old_sequences() -> None:
    target = FakeTarget()
    target.delay_seconds = 0.01
    async with running(target) as run:
        generating = asyncio.create_task(refused(run, request(max_new_tokens=400, num_draft_tokens=0)))
        await until(lambda: len(target.commands) > 5)
        target.tokenizer_files = tiny_tokenizer_files(300)
        target.model_info.tokenizer_hash = tokenizer_hash(target.tokenizer_files)
        target.model_info.vocab_size = 300
        target.break_streams()
        failure = await generating
        assert failure.code() is grpc.StatusCode.UNAVAILABLE
        assert "another model" in str(failure.details())
        assert run.service.targets.kind.vocab_size == 300

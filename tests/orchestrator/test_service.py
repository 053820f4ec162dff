"""The generation service: what clients are told, and what is left behind when they go."""

import asyncio
import random
import time
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from orchestrator import generation as generation_module
from orchestrator import service as service_module
from orchestrator.request import resolve_request
from specdec.serving.channel import open_channel
from specdec.telemetry import names
from specdec.v1 import generation_pb2, generation_pb2_grpc, model_pb2, sampling_pb2
from tests.orchestrator.fakes import TOKENIZER_FILES, FakeDraft, FakeTarget
from tests.orchestrator.running import NOWHERE, PROMPT, Running, request, running
from tests.orchestrator.serving import until
from tests.orchestrator.table import plain_continuation
from tests.tiny_models import EOS_TOKEN_ID

EXPECTED = plain_continuation(PROMPT, 24)
DECODE = TOKENIZER_FILES.tokenizer().decode


async def test_a_stream_begins_with_started_and_ends_with_finished() -> None:
    async with running(FakeTarget(), FakeDraft()) as run:
        events = [response.WhichOneof("event") async for response in run.stub.Generate(request())]
        assert events[0] == "started"
        assert events[-1] == "finished"
        assert set(events[1:-1]) == {"delta"}
        result = await run.generate()
    assert result.started is not None
    assert result.finished is not None
    assert result.started.model_id == "table"
    assert result.started.num_prompt_tokens == 3
    assert result.started.seed == 1
    assert result.started.acceptance_rule == model_pb2.ACCEPTANCE_RULE_COUPLED
    assert len(result.started.request_id) == 32
    assert result.text == DECODE([*PROMPT, *EXPECTED])[len(DECODE(PROMPT)) :]
    assert [report.round for report in result.rounds] == list(range(len(result.rounds)))
    base = 3
    for report in result.rounds:
        assert report.base_length == base
        base += report.num_accepted_tokens + 1
        assert report.wall_microseconds >= report.draft_wait_microseconds + report.verify_wait_microseconds - 2
        assert report.verify.compute_microseconds == 7
        assert report.draft.compute_microseconds == (3 if report.num_draft_tokens else 0)
    stats, usage = result.finished.stats, result.finished.usage
    assert (usage.num_prompt_tokens, usage.num_generated_tokens) == (3, 24)
    assert stats.num_rounds == len(result.rounds) - 1
    assert stats.num_accepted_tokens == sum(report.num_accepted_tokens for report in result.rounds)
    assert stats.acceptance_rate == stats.num_accepted_tokens / stats.num_draft_tokens
    assert stats.mean_acceptance_length == 1 + stats.num_accepted_tokens / stats.num_rounds
    assert stats.ttft_seconds > 0
    assert stats.tokens_per_second > 0
    assert result.finished.finish_reason == generation_pb2.FINISH_REASON_LENGTH


async def test_unary_says_the_same() -> None:
    async with running(FakeTarget(), FakeDraft()) as run:
        streamed = await run.generate()
        answer = await run.stub.GenerateUnary(generation_pb2.GenerateUnaryRequest(request=request()))
    (completion,) = answer.completions
    assert completion.text == streamed.text
    assert list(completion.token_ids) == streamed.token_ids == EXPECTED
    assert len(completion.rounds) == len(streamed.rounds)
    assert streamed.finished is not None
    assert completion.finished.usage == streamed.finished.usage
    assert answer.started.num_prompt_tokens == 3


async def test_text_chat_and_large_prompts() -> None:
    async with running(FakeTarget(max_context_length=40_000)) as run:
        text = await run.generate(generation_pb2.GenerateRequest(text="hello", max_new_tokens=4))
        ids = TOKENIZER_FILES.tokenizer().encode("hello").ids
        assert text.token_ids == plain_continuation(ids, 4)
        chat = generation_pb2.ChatInput(messages=[generation_pb2.ChatMessage(role="user", content="hi")])
        answer = await run.generate(generation_pb2.GenerateRequest(chat=chat, max_new_tokens=4))
        ids = TOKENIZER_FILES.tokenizer().encode("user: hi\nassistant:", add_special_tokens=False).ids
        assert answer.token_ids == plain_continuation(ids, 4)


async def test_a_large_prompt_is_tokenized_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def noting(*arguments: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            threads.append(True)
        else:
            threads.append(False)
        return resolve_request(*arguments)

    monkeypatch.setattr(generation_module, "resolve_request", noting)
    async with running(FakeTarget(max_context_length=40_000)) as run:
        await run.generate(generation_pb2.GenerateRequest(text="hello", max_new_tokens=1))
        await run.generate(generation_pb2.GenerateRequest(text="hello " * 4000, max_new_tokens=1))
    assert threads == [False, True]


async def test_the_cut_at_a_stop_ends_the_sequence_and_trims_everything() -> None:
    target, draft = FakeTarget(), FakeDraft()
    asked = request(sampling=sampling_pb2.SamplingParams(seed=1, stop_token_ids=[EXPECTED[9]]))
    async with running(target, draft) as run:
        result = await run.generate(asked)
        assert result.token_ids == EXPECTED[:10]
        assert result.finished is not None
        assert result.finished.finish_reason == generation_pb2.FINISH_REASON_STOP
        assert result.finished.stop_token_id == EXPECTED[9]
        assert result.finished.usage.num_generated_tokens == 10
        await until(lambda: not target.sequences and not draft.sequences)

        stop = DECODE(EXPECTED[5:7])[-2:]
        text = DECODE([*PROMPT, *EXPECTED])[len(DECODE(PROMPT)) :]
        result = await run.generate(request(stop_strings=[stop]))
        assert result.text == text[: text.index(stop)]
        assert result.finished is not None
        assert result.finished.stop_string == stop
        assert result.finished.usage.num_generated_tokens == len(result.token_ids)
        await until(lambda: not target.sequences and not draft.sequences)
    assert not target.refusals
    assert not draft.refusals


async def test_the_models_own_stop_token_ends_the_text() -> None:
    def ends_at(prefix: Any) -> int:
        return EOS_TOKEN_ID if len(prefix) >= 10 else 50

    async with running(FakeTarget(ends_at), FakeDraft(ends_at)) as run:
        result = await run.generate()
    assert result.token_ids == [50] * 7 + [EOS_TOKEN_ID]
    assert result.finished is not None
    assert result.finished.stop_token_id == EOS_TOKEN_ID


async def refusal(run: Running, asked: generation_pb2.GenerateRequest) -> tuple[grpc.StatusCode, str]:
    """Of both methods, which say the same."""
    with pytest.raises(grpc.aio.AioRpcError) as streamed:
        await run.generate(asked)
    with pytest.raises(grpc.aio.AioRpcError) as unary:
        await run.stub.GenerateUnary(generation_pb2.GenerateUnaryRequest(request=asked), timeout=10)
    assert streamed.value.code() is unary.value.code()
    return streamed.value.code(), str(streamed.value.details())


@pytest.mark.parametrize(
    ("asked", "code", "named"),
    [
        (generation_pb2.GenerateRequest(), grpc.StatusCode.INVALID_ARGUMENT, "input"),
        (request([]), grpc.StatusCode.INVALID_ARGUMENT, "token_ids"),
        (request([320]), grpc.StatusCode.INVALID_ARGUMENT, "vocabulary of 320"),
        (request(max_new_tokens=0), grpc.StatusCode.INVALID_ARGUMENT, "max_new_tokens"),
        (request(num_draft_tokens=17), grpc.StatusCode.INVALID_ARGUMENT, "num_draft_tokens"),
        (request(stop_strings=[""]), grpc.StatusCode.INVALID_ARGUMENT, "stop_strings"),
        (
            request(acceptance_rule=model_pb2.ACCEPTANCE_RULE_BLOCK),
            grpc.StatusCode.INVALID_ARGUMENT,
            "acceptance_rule",
        ),
        (
            request(sampling=sampling_pb2.SamplingParams(temperature=-1)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "temperature",
        ),
        (request([5] * 512), grpc.StatusCode.OUT_OF_RANGE, "512"),
        (generation_pb2.GenerateRequest(text="x" * 100_000), grpc.StatusCode.OUT_OF_RANGE, "512"),
    ],
)
async def test_wrong_requests_are_refused_and_reach_no_service(
    asked: generation_pb2.GenerateRequest, code: grpc.StatusCode, named: str
) -> None:
    target, draft = FakeTarget(), FakeDraft()
    async with running(target, draft) as run:
        actual, details = await refusal(run, asked)
        assert actual is code
        assert named in details
        assert run.counting.by_attribute(names.REQUESTS) == {code.name: 2}
    assert not target.commands
    assert not draft.commands


async def test_without_a_target_requests_are_refused_and_health_says_so() -> None:
    target = FakeTarget(protocol_version=7)
    async with running(target, NOWHERE, wait=False) as run:
        await until(lambda: "protocol version 7" in run.service.targets.problem)
        assert not run.host.health.is_serving
        code, details = await refusal(run, request())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "protocol version 7" in details
        # Ready as soon as the target is, with or without a draft service.
        target.model_info.protocol_version = 1
        await until(lambda: run.host.health.is_serving)
        assert (await run.generate()).token_ids == EXPECTED
        target.model_info.protocol_version = 7
        target.break_streams()
        await until(lambda: not run.host.health.is_serving)


async def test_more_than_the_limit_are_refused() -> None:
    target = FakeTarget()
    target.delay_seconds = 0.02
    async with running(target, max_concurrent_requests=2) as run:
        outcomes = await asyncio.gather(*(run.generate() for _ in range(6)), return_exceptions=True)
        refusals = [outcome for outcome in outcomes if isinstance(outcome, grpc.aio.AioRpcError)]
        assert [refused.code() for refused in refusals] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 4
        assert all("grpc-status-details-bin" in dict(refused.trailing_metadata()) for refused in refusals)
        assert (await run.generate()).token_ids == EXPECTED


async def test_a_request_that_cannot_make_its_deadline_is_refused_at_once() -> None:
    target = FakeTarget()
    target.delay_seconds = 0.3
    async with running(target) as run:
        await run.generate(request(max_new_tokens=2, num_draft_tokens=0))
        beside = asyncio.create_task(run.generate(request(max_new_tokens=8, num_draft_tokens=0)))
        await until(lambda: sum(command.HasField("open") for command in target.commands) == 2)
        began = time.perf_counter()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            async for _ in run.stub.Generate(request(), timeout=0.12):
                pass
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the deadline is in" in str(failure.value.details())
        assert time.perf_counter() - began < 0.1
        await beside


async def test_draining_refuses_new_requests_and_lets_running_ones_finish() -> None:
    target = FakeTarget()
    target.delay_seconds = 0.01
    async with running(target) as run:
        generating = asyncio.create_task(run.generate())
        await until(lambda: len(target.commands) > 3)
        draining = asyncio.create_task(run.service.drain())
        await asyncio.sleep(0)
        assert (await refusal(run, request()))[0] is grpc.StatusCode.UNAVAILABLE
        assert not draining.done()
        assert (await generating).token_ids == EXPECTED
        await asyncio.wait_for(draining, 5)


async def test_sixteen_requests_share_messages() -> None:
    target, draft = FakeTarget(), FakeDraft()
    target.delay_seconds = draft.delay_seconds = 0.02
    async with running(target, draft) as run:
        results = await asyncio.gather(*(run.generate(request([50 + index])) for index in range(16)))
    for index, result in enumerate(results):
        assert result.token_ids == plain_continuation([50 + index], 24)
    assert not target.refusals
    assert not draft.refusals
    for batch_sizes in (target.batch_sizes, draft.batch_sizes):
        assert sum(batch_sizes) / len(batch_sizes) > 3


# Clients that go away.


@pytest.mark.parametrize("method", ["stream", "unary"])
async def test_cancelled_requests_leave_nothing_behind(method: str, caplog: pytest.LogCaptureFixture) -> None:
    """B38: at random points, from before the first token to after the last."""
    target, draft = FakeTarget(), FakeDraft()
    generator = random.Random(7)

    async def cancel(run: Running) -> None:
        call: Any
        if method == "stream":
            call = run.stub.Generate(request())
            reading = asyncio.ensure_future(_read_all(call))
        else:
            call = run.stub.GenerateUnary(generation_pb2.GenerateUnaryRequest(request=request()))
            reading = asyncio.ensure_future(call)
        await asyncio.sleep(generator.random() * 0.06)
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    async with running(target, draft) as run:
        target.delay_seconds = draft.delay_seconds = 0.001
        await run.generate()
        await until(lambda: not target.sequences)
        num_tasks = len(asyncio.all_tasks())
        for _ in range(10):
            await asyncio.gather(*(cancel(run) for _ in range(10)))
        await until(lambda: not target.sequences and not draft.sequences, 2)
        await until(lambda: len(asyncio.all_tasks()) <= num_tasks, 2)
        assert run.service.drafts is not None
        assert run.service.targets.num_sequences == run.service.drafts.num_sequences == 0
        assert run.counting.by_attribute(names.ACTIVE_REQUESTS) == {"": 0}
        assert run.counting.by_attribute(names.REQUESTS)["CANCELLED"] >= 10
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        assert (await run.generate()).token_ids == EXPECTED
    assert not target.refusals
    assert not draft.refusals


async def _read_all(call: Any) -> list[Message]:
    return [response async for response in call]


@pytest.mark.parametrize("frozen", [True, False])
async def test_the_clients_deadline_ends_the_request(frozen: bool) -> None:
    target, draft = FakeTarget(), FakeDraft()
    async with running(target, draft) as run:
        target.is_frozen = frozen
        target.delay_seconds = 0.02
        with pytest.raises(grpc.aio.AioRpcError) as expired:
            await _read_all(run.stub.Generate(request(max_new_tokens=400), timeout=0.2))
        assert expired.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: not target.sequences and not draft.sequences, 2)


async def test_a_client_whose_connection_vanishes() -> None:
    target, draft = FakeTarget(), FakeDraft()
    target.delay_seconds = 0.01
    async with running(target, draft) as run:
        channel = open_channel(run.host.address, max_message_bytes=1 << 20)
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request(max_new_tokens=400))
        await call.read()
        await until(lambda: bool(target.sequences))
        await channel.close()
        await until(lambda: not target.sequences and not draft.sequences, 2)


async def test_a_client_that_does_not_read_loses_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_STALLED_READER_SECONDS", 0.5)
    # Long log-probabilities fill the buffers between the two ends soon.
    target = FakeTarget(max_context_length=100_000)

    def verbose(_: Any, event: Any) -> list[Any]:
        verdict = event.opened.first if event.HasField("opened") else event.verdict
        verdict.logprobs.add(top_token_ids=range(5000))
        return [event]

    target.change = verbose
    async with running(target) as run:
        call = run.stub.Generate(request(max_new_tokens=50_000, num_draft_tokens=0))
        await until(lambda: bool(target.sequences))
        await until(lambda: not target.sequences, 15)
        with pytest.raises(grpc.aio.AioRpcError) as stalled:
            await _read_all(call)
        assert stalled.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "read" in str(stalled.value.details())

"""One request's trace and metrics."""

from collections.abc import Iterator
from typing import Any

import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from specdec.telemetry import names
from specdec.v1 import draft_pb2, generation_pb2, sampling_pb2
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import NOWHERE, PROMPT, request, running
from tests.orchestrator.serving import until
from tests.orchestrator.table import plain_continuation
from tests.recorded_spans import recorded_spans

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
METADATA = (("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01"),)
ORCHESTRATOR_SPANS = {span.name: span for span in names.SPANS.values() if span.service == "orchestrator"}


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with recorded_spans() as exporter:
        yield exporter


def parent_of(span: ReadableSpan, spans: tuple[ReadableSpan, ...]) -> str:
    assert span.parent is not None
    return next(other.name for other in spans if other.context.span_id == span.parent.span_id)


async def test_one_trace_a_request_under_the_clients_own(spans: InMemorySpanExporter) -> None:
    target, draft = FakeTarget(), FakeDraft()
    async with running(target, draft) as run:
        responses = [response async for response in run.stub.Generate(request(), metadata=METADATA)]
        await until(lambda: any(span.name == "generate" for span in spans.get_finished_spans()))
    finished = responses[-1].finished
    found = spans.get_finished_spans()
    by_name: dict[str, list[ReadableSpan]] = {}
    for span in found:
        assert f"{span.context.trace_id:032x}" == TRACE_ID
        assert set(span.attributes or {}) <= set(ORCHESTRATOR_SPANS[span.name].attributes)
        by_name.setdefault(span.name, []).append(span)
    (generate,) = by_name["generate"]
    assert generate.parent is not None
    assert f"{generate.parent.span_id:016x}" == SPAN_ID
    assert set(generate.attributes or {}) == set(ORCHESTRATOR_SPANS["generate"].attributes) - {names.ERROR_TYPE}
    assert (generate.attributes or {})[names.STATUS_CODE] == "OK"
    assert (generate.attributes or {})[names.OUTPUT_TOKENS] == 24
    num_rounds = finished.stats.num_rounds
    assert [len(by_name[name]) for name in ("prefill", "round", "verify")] == [1, num_rounds, num_rounds]
    # The last round has room for one token only, and asks for no draft.
    assert len(by_name["draft"]) in (num_rounds - 1, num_rounds)
    for name, parent in {"prefill": "generate", "round": "generate", "draft": "round", "verify": "round"}.items():
        assert {parent_of(span, found) for span in by_name[name]} == {parent}
    indices = [(span.attributes or {})[names.ROUND_INDEX] for span in by_name["round"]]
    assert indices == list(range(1, num_rounds + 1))
    # The messages carry the context of the very span that waits for the answer.
    span_ids = {name: {f"{span.context.span_id:016x}" for span in by_name[name]} for name in by_name}
    for command in target.commands:
        if command.HasField("open"):
            assert command.open.trace_context.traceparent.split("-")[2] in span_ids["prefill"]
        elif command.HasField("window"):
            assert command.window.trace_context.traceparent.split("-")[2] in span_ids["verify"]
    asked = [command.commit for command in draft.commands if command.commit.num_draft_tokens]
    assert asked
    assert {commit.trace_context.traceparent.split("-")[2] for commit in asked} <= span_ids["draft"]


async def test_fallbacks_and_failures_are_on_the_spans(spans: InMemorySpanExporter) -> None:
    target = FakeTarget()
    async with running(target, NOWHERE, round_timeout_seconds=0.2) as run:
        await run.generate()
        await until(lambda: any(span.name == "generate" for span in spans.get_finished_spans()))
        rounds = [span for span in spans.get_finished_spans() if span.name == "round"]
        # All but the last, for which no draft was wanted.
        assert {(span.attributes or {}).get(names.ROUND_FALLBACK) for span in rounds[:-1]} == {"unavailable"}
        spans.clear()
        target.is_frozen = True
        with pytest.raises(grpc.aio.AioRpcError):
            await run.generate()
        await until(lambda: len(spans.get_finished_spans()) == 2)
        for span in spans.get_finished_spans():
            assert (span.attributes or {})[names.ERROR_TYPE] == "UNAVAILABLE"


async def test_a_cancelled_request_leaves_no_span_open(spans: InMemorySpanExporter) -> None:
    target, draft = FakeTarget(), FakeDraft()
    async with running(target, draft) as run:
        draft.is_frozen = True
        call = run.stub.Generate(request())
        await until(lambda: any(command.HasField("commit") for command in draft.commands))
        call.cancel()
        await until(lambda: any(span.name == "generate" for span in spans.get_finished_spans()))
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {"generate", "prefill", "round", "draft"}
    assert (found["generate"].attributes or {})[names.ERROR_TYPE] == "cancelled"
    assert (found["generate"].attributes or {})[names.STATUS_CODE] == "CANCELLED"


async def test_no_prompt_and_no_output_in_spans_or_logs(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """B66."""
    marker = "zebracrossing"
    async with running(FakeTarget(), FakeDraft()) as run:
        with caplog.at_level("DEBUG"):
            result = await run.generate(generation_pb2.GenerateRequest(text=marker, max_new_tokens=8))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await run.generate(generation_pb2.GenerateRequest(text=marker * 10_000))
        await until(lambda: len([span for span in spans.get_finished_spans() if span.name == "generate"]) == 2)
    written = "".join([*(span.to_json() for span in spans.get_finished_spans()), caplog.text, str(refused.value)])
    assert marker not in written
    assert str(result.token_ids)[1:-1] not in written
    assert result.text not in written


async def test_metrics_add_up() -> None:
    async with running(FakeTarget(), FakeDraft()) as run:
        results = [await run.generate() for _ in range(2)]
        stats = [result.finished.stats for result in results if result.finished is not None]
        counting = run.counting

        def total(metric: names.MetricName) -> float:
            return counting.total(metric)

        await until(lambda: total(names.REQUESTS) == 2)
        assert total(names.NUM_DRAFT_TOKENS) == sum(each.num_draft_tokens for each in stats)
        assert total(names.NUM_ACCEPTED_TOKENS) == sum(each.num_accepted_tokens for each in stats)
        assert total(names.NUM_ACCEPTED_TOKENS_PER_POS) == total(names.NUM_ACCEPTED_TOKENS)
        assert total(names.ROUND_DURATION) == sum(each.num_rounds for each in stats)
        assert total(names.TIME_TO_FIRST_TOKEN) == total(names.TIME_PER_OUTPUT_TOKEN) == 2
        assert total(names.REQUEST_DURATION) == 2
        assert total(names.ACTIVE_REQUESTS) == 0
        assert counting.by_attribute(names.DRAFT_AVAILABLE) == {"": 1}
        assert set(counting.by_attribute(names.BYTES_SENT)) == {"draft", "target"}
        assert min(counting.by_attribute(names.BYTES_RECEIVED).values()) > 100


@pytest.mark.parametrize(("source", "word"), [(draft_pb2.DRAFT_SOURCE_MEMORY, "memory"), (99, "unknown")])
async def test_rounds_are_told_apart_by_where_their_drafts_came_from(
    spans: InMemorySpanExporter, source: draft_pb2.DraftSource.ValueType, word: str
) -> None:
    draft = FakeDraft()

    def from_source(_: Any, event: draft_pb2.DraftEvent) -> list[draft_pb2.DraftEvent]:
        event.proposal.source = source
        return [event]

    draft.change = from_source
    async with running(FakeTarget(), draft) as run:
        result = await run.generate()
        await until(lambda: any(span.name == "generate" for span in spans.get_finished_spans()))
        for metric in (names.NUM_DRAFTS, names.NUM_DRAFT_TOKENS, names.NUM_ACCEPTED_TOKENS):
            assert set(run.counting.by_attribute(metric)) == {word}
    drafted = [report for report in result.rounds if report.num_draft_tokens]
    assert drafted
    assert {report.draft_source for report in drafted} == {source}
    assert {report.draft_source for report in result.rounds if not report.num_draft_tokens} == {0}
    rounds = [span.attributes or {} for span in spans.get_finished_spans() if span.name == "round"]
    for attributes in rounds:
        expected = word if attributes[names.ROUND_NUM_DRAFT_TOKENS] else None
        assert attributes.get(names.DRAFT_SOURCE) == expected


async def test_logprobs_come_with_their_tokens_and_are_cut_with_them() -> None:
    """B09."""
    target = FakeTarget()

    def with_logprobs(_: Any, event: Any) -> list[Any]:
        verdict = event.opened.first if event.HasField("opened") else event.verdict
        num_tokens = len(verdict.accepted_nodes) + 1
        sequence = target.sequences[event.sequence_id].token_ids
        for token_id in sequence[len(sequence) - num_tokens :]:
            verdict.logprobs.add(token_id=token_id, logprob=-1.0)
        return [event]

    target.change = with_logprobs
    expected = plain_continuation(PROMPT, 24)
    sampling = sampling_pb2.SamplingParams(seed=1, num_logprobs=0, stop_token_ids=[expected[7]])
    async with running(target, FakeDraft()) as run:
        result = await run.generate(request(sampling=sampling))
    assert result.token_ids == expected[:8]
    assert [entry.token_id for entry in result.logprobs] == expected[:8]

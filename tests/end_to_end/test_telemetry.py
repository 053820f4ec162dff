"""One trace a request over three processes, received by a real OTLP/gRPC collector."""

from __future__ import annotations

import asyncio
import secrets

from specdec.serving.channel import open_channel
from specdec.v1 import generation_pb2_grpc
from tests.end_to_end.conftest import Deployment
from tests.end_to_end.prompts import PROMPTS
from tests.end_to_end.requests import chat_request
from tests.otlp_receiver import ReceivedSpan


async def test_fifty_requests_at_once_have_a_trace_each(deployment: Deployment) -> None:
    """Every round of every request, through all three processes, and nothing of one request in the trace of another."""
    traces = {secrets.token_hex(16): number for number in range(50)}

    async def rounds_of(trace_id: str, number: int) -> int:
        request = chat_request(PROMPTS[number % 8], num_draft_tokens=2, max_new_tokens=6, seed=1000 + number)
        async with open_channel(deployment.ngram, max_message_bytes=1 << 20) as channel:
            call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
                request, metadata=(("traceparent", f"00-{trace_id}-{secrets.token_hex(8)}-01"),), timeout=200
            )
            return sum([response.HasField("delta") async for response in call])

    counts = await asyncio.gather(*(rounds_of(trace_id, number) for trace_id, number in traces.items()))
    num_windows = sum(counts)

    def mine(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
        return [span for span in spans if span.trace_id in traces]

    def complete(spans: list[ReceivedSpan]) -> bool:
        found = [span.name for span in mine(spans)]
        return found.count("generate") == len(traces) and found.count("target.window") == num_windows

    await deployment.receiver.wait_for_spans(complete, timeout=30)
    spans = mine(deployment.receiver.spans)
    home = {span.span_id: span.trace_id for span in spans}
    for (trace_id, number), count in zip(traces.items(), counts, strict=True):
        of_trace = [span for span in spans if span.trace_id == trace_id]
        names = [span.name for span in of_trace]
        (generate,) = (span for span in of_trace if span.name == "generate")
        assert generate.attributes["gen_ai.request.seed"] == str(1000 + number)
        assert names.count("prefill") == 1
        assert names.count("round") == names.count("verify") == count - 1
        assert names.count("target.window") == count
        # Parents are of the same trace, but for the client's.
        assert all(home[span.parent_span_id] == trace_id for span in of_trace if span is not generate)
    # A pass belongs to no trace of a request, and links to each of those it served.
    linked = {link for span in deployment.receiver.spans_named("target.forward") for link in span.linked_span_ids}
    assert {span.span_id for span in spans if span.name == "target.window"} <= linked


async def test_span_tree_of_a_request(deployment: Deployment) -> None:
    trace_id, parent_id = secrets.token_hex(16), secrets.token_hex(8)
    request = chat_request(PROMPTS[6], num_draft_tokens=3, max_new_tokens=24)
    async with open_channel(deployment.ngram, max_message_bytes=1 << 20) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
            request, metadata=(("traceparent", f"00-{trace_id}-{parent_id}-01"),), timeout=120
        )
        rounds = [response.delta.round async for response in call if response.HasField("delta")]
    num_rounds = len(rounds) - 1
    assert num_rounds > 2

    def mine(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
        return [span for span in spans if span.trace_id == trace_id]

    def complete(spans: list[ReceivedSpan]) -> bool:
        names = [span.name for span in mine(spans)]
        return "generate" in names and names.count("target.window") == num_rounds + 1

    await deployment.receiver.wait_for_spans(complete)
    spans = mine(deployment.receiver.spans)
    by_id = {span.span_id: span for span in spans}
    parents = {
        (span.name, by_id[span.parent_span_id].name if span.parent_span_id in by_id else "client") for span in spans
    }
    assert parents == {
        ("generate", "client"),
        ("prefill", "generate"),
        ("round", "generate"),
        ("draft", "round"),
        ("verify", "round"),
        ("draft.propose", "draft"),
        ("target.window", "verify"),
        ("target.window", "prefill"),
    }
    (generate,) = (span for span in spans if span.name == "generate")
    assert generate.parent_span_id == parent_id
    assert {span.service for span in spans} == {"specdec-orchestrator", "specdec-draft", "specdec-target"}

    round_spans = sorted((s for s in spans if s.name == "round"), key=lambda s: s.attributes["specdec.round.index"])
    assert [span.attributes["specdec.round.num_accepted_tokens"] for span in round_spans] == [
        report.num_accepted_tokens for report in rounds[1:]
    ]
    for span in round_spans:
        parts = [value for key, value in span.attributes.items() if key.endswith("_seconds")]
        assert len(parts) == 6
        # The parts make up the round.
        assert 0.9 * sum(parts) <= (span.end_time - span.start_time) / 1e9 + 0.005

    # Each forward pass of the target links to the windows that it served.
    windows = {span.span_id for span in spans if span.name == "target.window"}
    linked = {link for span in deployment.receiver.spans_named("target.forward") for link in span.linked_span_ids}
    assert windows <= linked
    assert deployment.receiver.undeclared() == set()

"""One trace a request over three processes, received by a real OTLP/gRPC collector."""

from __future__ import annotations

import secrets

from specdec.serving.channel import open_channel
from specdec.v1 import generation_pb2_grpc
from tests.end_to_end.conftest import Deployment
from tests.end_to_end.prompts import PROMPTS
from tests.end_to_end.requests import chat_request
from tests.otlp_receiver import ReceivedSpan


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

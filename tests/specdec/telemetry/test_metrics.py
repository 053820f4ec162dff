from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from specdec.telemetry import names
from specdec.telemetry.metrics import (
    CandidateMetrics,
    DraftAheadMetrics,
    EngineMetrics,
    OrchestratorMetrics,
    RoundTimes,
)
from tests.specdec.telemetry.recorder import Recorder

Points = dict[str, list[Any]]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def use_everything(recorder: Recorder) -> None:
    """Call every method so that each attribute is emitted at least once."""
    orchestrator = OrchestratorMetrics(recorder.meter)
    orchestrator.active_requests(1)
    orchestrator.first_token(0.5, operation="chat", model="m")
    orchestrator.request_ended(
        grpc.StatusCode.OK,
        operation="chat",
        model="m",
        duration_seconds=2.0,
        finish_reason="stop",
        seconds_per_output_token=0.1,
    )
    orchestrator.request_ended(grpc.StatusCode.CANCELLED, operation="text_completion", model="m", duration_seconds=1.0)
    orchestrator.round_ended(
        num_draft_tokens=4,
        num_accepted_tokens=2,
        draft_source="model",
        duration_seconds=0.2,
        times=RoundTimes(target_compute=0.1),
        seconds_per_token=0.07,
        overlap_seconds=0.03,
        ahead_outcome="hit",
    )
    orchestrator.resync("target")
    orchestrator.failover("draft")
    orchestrator.fallback("timeout")
    orchestrator.stale_event("draft")
    orchestrator.sent("draft", 10)
    orchestrator.received("draft", 20)
    orchestrator.draft_available(True)
    orchestrator.replicas_available("target", 2)
    engine = EngineMetrics("target", recorder.meter)
    engine.open_sequences(3)
    engine.queue_length(2)
    engine.lease_expired()
    engine.forward(duration_seconds=0.1, num_sequences=3, num_rows=12)
    engine.kv_blocks(used=3, cached=2, free=1)
    engine.kv_queued_sequences(1)
    engine.kv_lost(num_evictions=2, num_preemptions=1)
    engine.prefix(num_tokens=30, num_hit_tokens=16)
    ahead = DraftAheadMetrics(recorder.meter)
    ahead.outcome(is_hit=True)
    ahead.wasted(3, "miss")
    CandidateMetrics(recorder.meter).ended(2, "hit")


def test_what_is_emitted_is_the_table(recorder: Recorder) -> None:
    use_everything(recorder)
    emitted = recorder.metrics()
    assert set(emitted) == set(names.METRICS)
    for name, metric in emitted.items():
        declared = names.METRICS[name]
        attributes = {key for point in metric.data.data_points for key in point.attributes or {}}
        assert attributes == set(declared.attributes), name
        assert (metric.unit, metric.description) == (declared.unit, declared.description)
        kind = {"Sum": "counter", "Gauge": "gauge", "Histogram": "histogram"}[type(metric.data).__name__]
        assert kind == declared.kind, name
        if kind == "histogram":
            assert metric.data.data_points[0].explicit_bounds == declared.buckets


def test_rounds_are_counted_as_vllm_counts_them(recorder: Recorder) -> None:
    metrics = OrchestratorMetrics(recorder.meter)
    for num_draft_tokens, num_accepted_tokens, source in [
        (4, 4, "model"),
        (4, 1, "suffix"),
        (3, 0, "model"),
        (0, 0, ""),
    ]:
        metrics.round_ended(
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=num_accepted_tokens,
            draft_source=source,
            duration_seconds=0.1,
            times=RoundTimes(draft_compute=0.02, target_compute=0.03),
            seconds_per_token=0.05,
            overlap_seconds=0.01,
            ahead_outcome="hit" if num_accepted_tokens else "",
        )
    assert recorder.values(names.OVERLAP) == {("hit",): pytest.approx(0.02), ("",): pytest.approx(0.02)}
    assert recorder.points(names.INTER_TOKEN_LATENCY)[0].sum == pytest.approx(0.2)
    assert recorder.values(names.NUM_DRAFTS) == {("model",): 2, ("suffix",): 1}
    assert recorder.values(names.NUM_DRAFT_TOKENS) == {("model",): 7, ("suffix",): 4}
    assert recorder.values(names.NUM_ACCEPTED_TOKENS) == {("model",): 4, ("suffix",): 1}
    assert recorder.values(names.NUM_ACCEPTED_TOKENS_PER_POS) == {(0,): 2, (1,): 1, (2,): 1, (3,): 1}
    assert recorder.points(names.ROUND_DURATION)[0].count == 4
    parts = recorder.values(names.ROUND_PART_DURATION)
    assert parts["draft_compute",] == pytest.approx(0.08)
    assert parts["target_compute",] == pytest.approx(0.12)
    assert parts["network",] == 0


def test_drafting_ahead_is_counted_by_what_became_of_it(recorder: Recorder) -> None:
    metrics = DraftAheadMetrics(recorder.meter)
    for is_hit in (True, False, True):
        metrics.outcome(is_hit=is_hit)
    metrics.wasted(3, "miss")
    metrics.wasted(2, "miss")
    metrics.wasted(0, "memory")
    metrics.wasted(1, "closed")
    assert recorder.values(names.AHEAD_PROPOSALS) == {("hit",): 2, ("miss",): 1}
    assert recorder.values(names.AHEAD_WASTED_TOKENS) == {("miss",): 5, ("closed",): 1}


def test_candidates_are_counted_by_what_became_of_them(recorder: Recorder) -> None:
    metrics = CandidateMetrics(recorder.meter)
    metrics.ended(1, "hit")
    metrics.ended(3, "miss")
    metrics.ended(0, "closed")
    metrics.ended(2, "miss")
    assert recorder.values(names.CANDIDATE_WINDOWS) == {("hit",): 1, ("miss",): 5}


def test_a_request_is_counted_by_how_it_ended(recorder: Recorder) -> None:
    metrics = OrchestratorMetrics(recorder.meter)
    for status, finish_reason in [
        (grpc.StatusCode.OK, "stop"),
        (grpc.StatusCode.OK, "length"),
        (grpc.StatusCode.OK, "stop"),
        (grpc.StatusCode.UNAVAILABLE, ""),
    ]:
        metrics.request_ended(status, operation="chat", model="m", duration_seconds=1.0, finish_reason=finish_reason)
    assert recorder.values(names.REQUESTS) == {
        ("stop", "OK"): 2,
        ("length", "OK"): 1,
        (None, "UNAVAILABLE"): 1,
    }
    assert recorder.values(names.REQUEST_DURATION) == {
        ("chat", "specdec", "m", None): 3.0,
        ("chat", "specdec", "m", "UNAVAILABLE"): 1.0,
    }
    assert names.TIME_PER_OUTPUT_TOKEN.name not in recorder.metrics()


def test_levels_are_what_was_told_last(recorder: Recorder) -> None:
    orchestrator, draft = OrchestratorMetrics(recorder.meter), EngineMetrics("draft", recorder.meter)
    for count in (1, 5, 2):
        orchestrator.active_requests(count)
        draft.open_sequences(count)
        draft.queue_length(count)
    for available in (True, False):
        orchestrator.draft_available(available)
    assert recorder.values(names.ACTIVE_REQUESTS) == {(): 2}
    assert recorder.values(names.OPEN_SEQUENCES) == {("draft",): 2}
    assert recorder.values(names.QUEUE_LENGTH) == {("draft",): 2}
    assert recorder.values(names.DRAFT_AVAILABLE) == {(): 0}


def test_leases_that_ran_out_are_counted(recorder: Recorder) -> None:
    metrics = EngineMetrics("draft", recorder.meter)
    metrics.lease_expired()
    metrics.lease_expired()
    assert recorder.values(names.EXPIRED_LEASES) == {("draft",): 2}


def test_key_value_memory_is_told_by_state_and_its_losses_add_up(recorder: Recorder) -> None:
    metrics = EngineMetrics("target", recorder.meter)
    for used, cached, free in ((1, 0, 5), (2, 3, 1)):
        metrics.kv_blocks(used=used, cached=cached, free=free)
        metrics.kv_lost(num_evictions=used, num_preemptions=1)
        metrics.prefix(num_tokens=20, num_hit_tokens=cached)
    assert recorder.values(names.KV_BLOCKS) == {("target", "used"): 2, ("target", "cached"): 3, ("target", "free"): 1}
    assert recorder.values(names.KV_EVICTIONS) == {("target",): 3}
    assert recorder.values(names.KV_PREEMPTIONS) == {("target",): 2}
    assert recorder.values(names.PREFIX_QUERIED_TOKENS) == {("target",): 40}
    assert recorder.values(names.PREFIX_HIT_TOKENS) == {("target",): 3}


def test_histograms_keep_the_trace_of_a_measurement(recorder: Recorder) -> None:
    metrics = OrchestratorMetrics(recorder.meter)
    sampled = TracerProvider().get_tracer("test").start_span("generate")
    unsampled = TracerProvider(sampler=ALWAYS_OFF).get_tracer("test").start_span("generate")
    for span in (sampled, unsampled):
        metrics.first_token(0.5, operation="chat", model="m", span=span)
        metrics.request_ended(
            grpc.StatusCode.OK,
            operation="chat",
            model="m",
            duration_seconds=2.0,
            seconds_per_output_token=0.1,
            span=span,
        )
        metrics.round_ended(
            num_draft_tokens=0,
            num_accepted_tokens=0,
            draft_source="",
            duration_seconds=0.1,
            times=RoundTimes(),
            seconds_per_token=0.1,
            span=span,
        )
    # Exemplars are kept until they are read.
    found = recorder.metrics()
    for name in (
        names.TIME_TO_FIRST_TOKEN,
        names.REQUEST_DURATION,
        names.TIME_PER_OUTPUT_TOKEN,
        names.ROUND_DURATION,
        names.INTER_TOKEN_LATENCY,
    ):
        (point,) = found[name.name].data.data_points
        assert point.count == 2
        (exemplar,) = point.exemplars
        assert exemplar.trace_id == sampled.get_span_context().trace_id


def test_the_times_of_a_round_are_its_span_s_attributes() -> None:
    assert RoundTimes._fields == tuple(names.ROUND_PARTS)
    assert RoundTimes(network=0.5).attributes()[names.ROUND_NETWORK_SECONDS] == 0.5


def test_without_a_collector_nothing_happens() -> None:
    metrics = OrchestratorMetrics()
    metrics.round_ended(
        num_draft_tokens=1,
        num_accepted_tokens=1,
        draft_source="model",
        duration_seconds=0.1,
        times=RoundTimes(),
        seconds_per_token=0.05,
    )
    EngineMetrics("draft").forward(duration_seconds=0.1, num_sequences=1, num_rows=1)

"""Instruments of each service, made from the table in names.py. With metrics off they do nothing.

Levels (open sequences, active requests, queue length) are told as they are, never as differences.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import grpc
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation, _Gauge
from opentelemetry.trace import Span

from specdec.telemetry import names
from specdec.telemetry.names import MetricName

LinkName = Literal["draft", "target"]
WasteCause = Literal["miss", "unused", "memory", "closed", "failed"]
"""Another outcome came true; the proposal was shorter, or made otherwise; the memory was needed; the sequence ended;
the forward pass failed."""
CandidateOutcome = Literal["hit", "miss", "stale", "closed"]
"""It was judged; another outcome came true; it came for an epoch or a round that is over; the sequence ended."""

_NO_CONTEXT = Context()
_PART_ATTRIBUTES = [{names.ROUND_PART: part} for part in names.ROUND_PARTS]


class RoundTimes(NamedTuple):
    """Where the time of one round went, in seconds: a field for each of `names.ROUND_PARTS`."""

    draft_queue: float = 0.0
    draft_compute: float = 0.0
    target_queue: float = 0.0
    target_compute: float = 0.0
    network: float = 0.0
    waiting: float = 0.0

    def attributes(self) -> dict[str, float]:
        """As attributes of the round span."""
        return dict(zip(names.ROUND_PARTS.values(), self, strict=True))


class _Tally:
    """A counter that costs one addition: its instrument reads it when metrics are exported."""

    def __init__(self, meter: Meter, name: MetricName) -> None:
        (self._attribute,) = name.attributes
        self._counts: dict[str | int, float] = {}
        meter.create_observable_counter(name.name, [self._observe], name.unit, name.description)

    def add(self, count: float, value: str | int) -> None:
        """Count, under a value of the metric's one attribute."""
        self._counts[value] = self._counts.get(value, 0) + count

    def _observe(self, options: CallbackOptions) -> list[Observation]:
        return [Observation(count, {self._attribute: value}) for value, count in self._counts.copy().items()]


class OrchestratorMetrics:
    """What the orchestrator counts. `meter` is for tests; by default the process's own."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter("specdec")
        self._time_to_first_token = _histogram(meter, names.TIME_TO_FIRST_TOKEN)
        self._time_per_output_token = _histogram(meter, names.TIME_PER_OUTPUT_TOKEN)
        self._request_duration = _histogram(meter, names.REQUEST_DURATION)
        self._requests = meter.create_counter(names.REQUESTS.name, names.REQUESTS.unit, names.REQUESTS.description)
        self._active_requests = _gauge(meter, names.ACTIVE_REQUESTS)
        self._num_drafts = _Tally(meter, names.NUM_DRAFTS)
        self._num_draft_tokens = _Tally(meter, names.NUM_DRAFT_TOKENS)
        self._num_accepted_tokens = _Tally(meter, names.NUM_ACCEPTED_TOKENS)
        self._num_accepted_tokens_per_pos = _Tally(meter, names.NUM_ACCEPTED_TOKENS_PER_POS)
        self._resyncs = _Tally(meter, names.RESYNCS)
        self._failovers = _Tally(meter, names.FAILOVERS)
        self._fallbacks = _Tally(meter, names.FALLBACKS)
        self._stale_events = _Tally(meter, names.STALE_EVENTS)
        self._round_duration = _histogram(meter, names.ROUND_DURATION)
        self._overlap = _Tally(meter, names.OVERLAP)
        self._inter_token_latency = _histogram(meter, names.INTER_TOKEN_LATENCY)
        self._round_part_duration = _histogram(meter, names.ROUND_PART_DURATION)
        self._bytes_sent = _Tally(meter, names.BYTES_SENT)
        self._bytes_received = _Tally(meter, names.BYTES_RECEIVED)
        self._draft_available = _gauge(meter, names.DRAFT_AVAILABLE)
        self._replicas_available = _gauge(meter, names.REPLICAS_AVAILABLE)

    def active_requests(self, count: int) -> None:
        """Requests being served now."""
        self._active_requests.set(count)

    def first_token(self, seconds: float, *, operation: str, model: str, span: Span = trace.INVALID_SPAN) -> None:
        """The first token of a request was committed, `seconds` after admission. `span` as of `request_ended`."""
        self._time_to_first_token.record(seconds, _request_attributes(operation, model), exemplar_context(span))

    def request_ended(
        self,
        status: grpc.StatusCode,
        *,
        operation: str,
        model: str,
        duration_seconds: float,
        finish_reason: str = "",
        seconds_per_output_token: float | None = None,
        span: Span = trace.INVALID_SPAN,
    ) -> None:
        """A request ended, well or not.

        Args:
            status: what the client was told; CANCELLED if it went away.
            operation: "chat" or "text_completion".
            model: the target model.
            duration_seconds: from admission.
            finish_reason: "stop" or "length"; empty if it did not finish.
            seconds_per_output_token: mean after the first token; None with fewer than two tokens.
            span: of the request; histograms keep its trace as an exemplar, if it is sampled.
        """
        context = exemplar_context(span)
        attributes = _request_attributes(operation, model)
        ended = {names.STATUS_CODE: status.name}
        if finish_reason:
            ended[names.FINISH_REASONS] = finish_reason
        self._requests.add(1, ended)
        if seconds_per_output_token is not None:
            self._time_per_output_token.record(seconds_per_output_token, attributes, context)
        if status is not grpc.StatusCode.OK:
            attributes = {**attributes, names.ERROR_TYPE: status.name}
        self._request_duration.record(duration_seconds, attributes, context)

    def round_ended(
        self,
        *,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        draft_source: str,
        duration_seconds: float,
        times: RoundTimes,
        seconds_per_token: float,
        overlap_seconds: float = 0.0,
        ahead_outcome: str = "",
        span: Span = trace.INVALID_SPAN,
    ) -> None:
        """A round was committed. The prefill is not a round.

        Args:
            num_draft_tokens: in its window.
            num_accepted_tokens: of them.
            draft_source: a word of `source_name`.
            duration_seconds: of the round.
            times: its parts.
            seconds_per_token: since the tokens before, over the tokens that it brought.
            overlap_seconds: of drafting that nobody waited for.
            ahead_outcome: `hit` or `miss` if it was drafted ahead for.
            span: as of `request_ended`.
        """
        if overlap_seconds:
            self._overlap.add(overlap_seconds, ahead_outcome)
        if num_draft_tokens:
            self._num_drafts.add(1, draft_source)
            self._num_draft_tokens.add(num_draft_tokens, draft_source)
        if num_accepted_tokens:
            self._num_accepted_tokens.add(num_accepted_tokens, draft_source)
            for position in range(num_accepted_tokens):
                self._num_accepted_tokens_per_pos.add(1, position)
        context = exemplar_context(span)
        self._round_duration.record(duration_seconds, None, context)
        self._inter_token_latency.record(seconds_per_token, None, context)
        for seconds, attributes in zip(times, _PART_ATTRIBUTES, strict=True):
            self._round_part_duration.record(seconds, attributes)

    def resync(self, link: LinkName) -> None:
        """A sequence was opened again because the service's copy was lost or out of step."""
        self._resyncs.add(1, link)

    def failover(self, link: LinkName) -> None:
        """A sequence was opened again on another replica than the one it was on."""
        self._failovers.add(1, link)

    def fallback(self, cause: str) -> None:
        """A round went without the drafts that were wanted; `cause` is one of a few fixed words."""
        self._fallbacks.add(1, cause)

    def stale_event(self, link: LinkName) -> None:
        """An event of an older epoch or round, or of an unknown sequence, was dropped."""
        self._stale_events.add(1, link)

    def sent(self, link: LinkName, num_bytes: int) -> None:
        """A message was sent on a link."""
        self._bytes_sent.add(num_bytes, link)

    def received(self, link: LinkName, num_bytes: int) -> None:
        """A message was received on a link."""
        self._bytes_received.add(num_bytes, link)

    def draft_available(self, available: bool) -> None:
        """Whether a draft service can be used now."""
        self._draft_available.set(int(available))

    def replicas_available(self, link: LinkName, count: int) -> None:
        """How many replicas take sequences now."""
        self._replicas_available.set(count, {names.LINK: link})


class EngineMetrics:
    """What the engine of a draft or target service counts. `meter` is for tests; by default the process's own.

    Safe to call from the thread that runs the forward passes.
    """

    def __init__(self, service: LinkName, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter("specdec")
        self._attributes = {names.SERVICE: service}
        self._open_sequences = _gauge(meter, names.OPEN_SEQUENCES)
        self._queue_length = _gauge(meter, names.QUEUE_LENGTH)
        self._forward_duration = _histogram(meter, names.FORWARD_DURATION)
        self._forward_sequences = _histogram(meter, names.FORWARD_SEQUENCE_COUNT)
        self._forward_rows = _histogram(meter, names.FORWARD_ROW_COUNT)
        self._service = service
        self._kv_blocks = _gauge(meter, names.KV_BLOCKS)
        self._kv_queued_sequences = _gauge(meter, names.KV_QUEUED_SEQUENCES)
        self._expired_leases = _Tally(meter, names.EXPIRED_LEASES)
        self._kv_evictions = _Tally(meter, names.KV_EVICTIONS)
        self._kv_preemptions = _Tally(meter, names.KV_PREEMPTIONS)
        self._prefix_queried_tokens = _Tally(meter, names.PREFIX_QUERIED_TOKENS)
        self._prefix_hit_tokens = _Tally(meter, names.PREFIX_HIT_TOKENS)

    def open_sequences(self, count: int) -> None:
        """Sequences open now."""
        self._open_sequences.set(count, self._attributes)

    def lease_expired(self) -> None:
        """A sequence was closed because its orchestrator was silent."""
        self._expired_leases.add(1, self._service)

    def queue_length(self, count: int) -> None:
        """Commands that wait for a forward pass now."""
        self._queue_length.set(count, self._attributes)

    def forward(self, *, duration_seconds: float, num_sequences: int, num_rows: int) -> None:
        """A forward pass was run."""
        self._forward_duration.record(duration_seconds, self._attributes)
        self._forward_sequences.record(num_sequences, self._attributes)
        self._forward_rows.record(num_rows, self._attributes)

    def kv_blocks(self, *, used: int, cached: int, free: int) -> None:
        """Blocks of key-value memory now."""
        for state, count in (("used", used), ("cached", cached), ("free", free)):
            self._kv_blocks.set(count, {**self._attributes, names.KV_BLOCK_STATE: state})

    def kv_queued_sequences(self, count: int) -> None:
        """Sequences that wait for key-value memory now."""
        self._kv_queued_sequences.set(count, self._attributes)

    def kv_lost(self, *, num_evictions: int, num_preemptions: int) -> None:
        """Cached blocks were evicted, and sequences lost their caches."""
        self._kv_evictions.add(num_evictions, self._service)
        self._kv_preemptions.add(num_preemptions, self._service)

    def prefix(self, *, num_tokens: int, num_hit_tokens: int) -> None:
        """A sequence of so many tokens was prefilled, of which so many were in the prefix cache."""
        self._prefix_queried_tokens.add(num_tokens, self._service)
        self._prefix_hit_tokens.add(num_hit_tokens, self._service)


class DraftAheadMetrics:
    """What a draft service counts of drafting ahead. `meter` is for tests; by default the process's own."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter("specdec")
        self._proposals = _Tally(meter, names.AHEAD_PROPOSALS)
        self._wasted_tokens = _Tally(meter, names.AHEAD_WASTED_TOKENS)

    def outcome(self, *, is_hit: bool) -> None:
        """A proposal was asked for by a sequence that was drafted ahead for."""
        self._proposals.add(1, "hit" if is_hit else "miss")

    def wasted(self, num_tokens: int, cause: WasteCause) -> None:
        """So many tokens were drafted ahead in vain."""
        if num_tokens:
            self._wasted_tokens.add(num_tokens, cause)


class CandidateMetrics:
    """What a target service counts of candidate windows. `meter` is for tests; by default the process's own."""

    def __init__(self, meter: Meter | None = None) -> None:
        self._windows = _Tally(meter or metrics.get_meter("specdec"), names.CANDIDATE_WINDOWS)

    def ended(self, count: int, outcome: CandidateOutcome) -> None:
        """So many candidates need not be kept any more."""
        if count:
            self._windows.add(count, outcome)


def exemplar_context(span: Span) -> Context | None:
    """For a measurement that belongs to a span; None unless its trace is sampled."""
    return trace.set_span_in_context(span, _NO_CONTEXT) if span.is_recording() else None


def _request_attributes(operation: str, model: str) -> Mapping[str, str]:
    return {names.OPERATION: operation, names.PROVIDER: names.PROVIDER_NAME, names.MODEL: model}


def _gauge(meter: Meter, name: MetricName) -> _Gauge:
    return meter.create_gauge(name.name, name.unit, name.description)


def _histogram(meter: Meter, name: MetricName) -> Histogram:
    return meter.create_histogram(
        name.name, name.unit, name.description, explicit_bucket_boundaries_advisory=name.buckets
    )

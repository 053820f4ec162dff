"""Every span, span attribute and metric of the project, in one table. What is not in it is not emitted.

Names that the OpenTelemetry semantic conventions have are taken from there (`gen_ai.`, `rpc.`, `error.`); the project's
own start with `specdec.`. No attribute ever holds a prompt, text or token ids. Durations are in seconds.
"""

from dataclasses import dataclass
from typing import Literal

ATTRIBUTES: dict[str, str] = {}
"""Description of each attribute, of spans and metrics."""
SPANS: dict[str, "SpanName"] = {}
METRICS: dict[str, "MetricName"] = {}

Kind = Literal["counter", "histogram", "gauge"]


@dataclass(frozen=True, slots=True)
class SpanName:
    """A kind of span and the attributes that it may have."""

    name: str
    service: str
    description: str
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric; `buckets` are the upper bounds of a histogram."""

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: tuple[str, ...]
    buckets: tuple[float, ...]


def _attribute(name: str, description: str) -> str:
    ATTRIBUTES[name] = description
    return name


def _span(name: str, service: str, description: str, *attributes: str) -> SpanName:
    SPANS[name] = SpanName(name, service, description, (*attributes, ERROR_TYPE))
    return SPANS[name]


def _metric(
    name: str, kind: Kind, unit: str, description: str, *attributes: str, buckets: tuple[float, ...] = ()
) -> MetricName:
    METRICS[name] = MetricName(name, kind, unit, description, attributes, buckets)
    return METRICS[name]


# Attributes: a failure, on any span.
ERROR_TYPE = _attribute(
    "error.type", "Why it failed: a status code, `cancelled`, or the class of an unexpected exception."
)

# Attributes: a request.
OPERATION = _attribute("gen_ai.operation.name", "`chat` or `text_completion`.")
PROVIDER = _attribute("gen_ai.provider.name", "Always `specdec`.")
PROVIDER_NAME = "specdec"
MODEL = _attribute("gen_ai.request.model", "Target model.")
MAX_TOKENS = _attribute("gen_ai.request.max_tokens", "Most new tokens.")
TEMPERATURE = _attribute("gen_ai.request.temperature", "Softmax temperature.")
TOP_P = _attribute("gen_ai.request.top_p", "Nucleus bound.")
TOP_K = _attribute("gen_ai.request.top_k", "Most probable tokens kept; 0 is off.")
SEED = _attribute("gen_ai.request.seed", "Seed in use, as text: it may exceed a signed 64-bit attribute.")
INPUT_TOKENS = _attribute("gen_ai.usage.input_tokens", "Tokens of the prompt.")
OUTPUT_TOKENS = _attribute("gen_ai.usage.output_tokens", "Tokens generated, after trimming.")
CACHED_TOKENS = _attribute("gen_ai.usage.cache_read.input_tokens", "Prompt tokens found in the target's prefix cache.")
FINISH_REASONS = _attribute("gen_ai.response.finish_reasons", "`stop` or `length`; on spans a list of one.")
STATUS_CODE = _attribute("rpc.response.status_code", "gRPC status that the request ended with, such as `OK`.")
REQUEST_ID = _attribute("specdec.request.id", "Random id of the request, as in logs and in the first message.")
ACCEPTANCE_RULE = _attribute("specdec.request.acceptance_rule", "`coupled`, `rejection` or `block`.")
NUM_ROUNDS = _attribute("specdec.request.num_rounds", "Rounds after the prefill.")
NUM_FALLBACK_ROUNDS = _attribute("specdec.request.num_fallback_rounds", "Rounds without the drafts that were wanted.")

# Attributes: a round.
ROUND_INDEX = _attribute("specdec.round.index", "Round of the request; 0 is the prefill.")
ROUND_BASE_LENGTH = _attribute("specdec.round.base_length", "Committed tokens before it.")
ROUND_NUM_DRAFT_TOKENS = _attribute("specdec.round.num_draft_tokens", "Draft tokens in the window.")
ROUND_NUM_ACCEPTED_TOKENS = _attribute("specdec.round.num_accepted_tokens", "How many of them were accepted.")
ROUND_NEXT_TOKEN_KIND = _attribute("specdec.round.next_token_kind", "`recovered` or `bonus`.")
DRAFT_SOURCE = _attribute(
    "specdec.draft.source", "Where the draft tokens came from: `model`, `ngram`, `suffix`, `memory` or `unknown`."
)
AHEAD_OUTCOME = _attribute(
    "specdec.draft.ahead", "`hit` if the window, or its beginning, was drafted ahead, `miss` if others were instead."
)
CANDIDATE_OUTCOME = _attribute(
    "specdec.candidate.outcome",
    "`hit`: judged; `miss`: another outcome came true; `stale`: it came too late; `closed`: the sequence ended.",
)
ROUND_IS_CANDIDATE = _attribute(
    "specdec.round.is_candidate", "Whether the target had the window before the round began."
)
ROUND_FALLBACK = _attribute("specdec.round.fallback", "Why the round went without the drafts that were wanted.")
ROUND_DRAFT_QUEUE_SECONDS = _attribute("specdec.round.draft_queue_seconds", "In the queue of the draft service.")
ROUND_DRAFT_COMPUTE_SECONDS = _attribute("specdec.round.draft_compute_seconds", "Drafting.")
ROUND_TARGET_QUEUE_SECONDS = _attribute("specdec.round.target_queue_seconds", "In the queue of the target service.")
ROUND_TARGET_COMPUTE_SECONDS = _attribute("specdec.round.target_compute_seconds", "In the target's forward pass.")
ROUND_NETWORK_SECONDS = _attribute("specdec.round.network_seconds", "Between the processes: wire, links, encoding.")
ROUND_WAITING_SECONDS = _attribute("specdec.round.waiting_seconds", "In the orchestrator: the rest of the round.")

# Attributes: the work of a service.
SEQUENCE_EPOCH = _attribute("specdec.sequence.epoch", "Counts the opens of the sequence.")
RESYNC_EVENT, FAILOVER_EVENT = "specdec.resync", "specdec.failover"
"""Events of a verify span: the sequence was opened again, on the same replica or on another one."""
K_EVENT = "specdec.num_draft_tokens"  # Event of a generate span: the choice of K has changed.
REPLICA = _attribute("specdec.replica", "Address of the replica that has the sequence.")
QUEUE_SECONDS = _attribute("specdec.queue_seconds", "From arrival to the forward pass.")
COMPUTE_SECONDS = _attribute("specdec.compute_seconds", "Duration of the forward passes, shared by the batch.")
FORWARD_SEQUENCES = _attribute("specdec.forward.sequences", "Sequences in the forward pass.")
FORWARD_ROWS = _attribute("specdec.forward.rows", "Rows (tokens) in the forward pass.")

# Attributes: metrics only.
POSITION = _attribute("position", "Position in the window, from 0.")
LINK = _attribute("specdec.link", "Service at the other end: `draft` or `target`.")
CAUSE = _attribute("specdec.cause", "Why it happened, a fixed set of words.")
ROUND_PART = _attribute("specdec.round.part", "Part of a round, named as the span attribute: `draft_queue`, ...")
SERVICE = _attribute("specdec.service", "`draft` or `target`.")
KV_BLOCK_STATE = _attribute(
    "specdec.kv.block.state", "`used` by sequences, `cached` for prefixes to come, or `free`; together all there are."
)

ROUND_PARTS = {
    "draft_queue": ROUND_DRAFT_QUEUE_SECONDS,
    "draft_compute": ROUND_DRAFT_COMPUTE_SECONDS,
    "target_queue": ROUND_TARGET_QUEUE_SECONDS,
    "target_compute": ROUND_TARGET_COMPUTE_SECONDS,
    "network": ROUND_NETWORK_SECONDS,
    "waiting": ROUND_WAITING_SECONDS,
}
"""Parts of a round and the span attribute of each."""

# Spans of the orchestrator.
GENERATE = _span(
    "generate",
    "orchestrator",
    "One request, from admission to its last message.",
    *(OPERATION, PROVIDER, MODEL, MAX_TOKENS, TEMPERATURE, TOP_P, TOP_K, SEED),
    *(INPUT_TOKENS, OUTPUT_TOKENS, CACHED_TOKENS, FINISH_REASONS, STATUS_CODE),
    *(REQUEST_ID, ACCEPTANCE_RULE, NUM_ROUNDS, NUM_FALLBACK_ROUNDS),
)
PREFILL = _span(
    "prefill",
    "orchestrator",
    "Opening the sequence at the target, and its first token. Child of generate.",
    *(INPUT_TOKENS, CACHED_TOKENS, SEQUENCE_EPOCH, REPLICA),
)
ROUND = _span(
    "round",
    "orchestrator",
    "One draft and one verify. Child of generate.",
    *(ROUND_INDEX, ROUND_BASE_LENGTH, ROUND_NUM_DRAFT_TOKENS, ROUND_NUM_ACCEPTED_TOKENS, ROUND_NEXT_TOKEN_KIND),
    *(DRAFT_SOURCE, AHEAD_OUTCOME, ROUND_IS_CANDIDATE, ROUND_FALLBACK),
    *ROUND_PARTS.values(),
)
DRAFT = _span("draft", "orchestrator", "Waiting for the proposal. Child of round.", ROUND_NUM_DRAFT_TOKENS)
VERIFY = _span(
    "verify",
    "orchestrator",
    "Waiting for the verdict; names the replica if the sequence was opened again. Child of round.",
    *(ROUND_NUM_DRAFT_TOKENS, SEQUENCE_EPOCH, REPLICA),
)

# Spans of the draft service.
DRAFT_PROPOSE = _span(
    "draft.propose",
    "draft",
    "One proposal, from the arrival of the command to its answer. Child of draft.",
    *(ROUND_INDEX, ROUND_BASE_LENGTH, ROUND_NUM_DRAFT_TOKENS, DRAFT_SOURCE, SEQUENCE_EPOCH),
    *(QUEUE_SECONDS, COMPUTE_SECONDS, FORWARD_SEQUENCES, FORWARD_ROWS),
)

# Spans of the target service.
TARGET_WINDOW = _span(
    "target.window",
    "target",
    "One window or prefill, from its arrival to its answer. Child of verify or of prefill.",
    *(ROUND_INDEX, ROUND_BASE_LENGTH, ROUND_NUM_DRAFT_TOKENS, ROUND_NUM_ACCEPTED_TOKENS, ROUND_NEXT_TOKEN_KIND),
    *(CACHED_TOKENS, SEQUENCE_EPOCH, QUEUE_SECONDS, COMPUTE_SECONDS, FORWARD_SEQUENCES, FORWARD_ROWS),
)
TARGET_FORWARD = _span(
    "target.forward",
    "target",
    "One forward pass. Root of its own trace, linked to the target.window spans that it served.",
    *(FORWARD_SEQUENCES, FORWARD_ROWS),
)

_MILLISECONDS_TO_A_MINUTE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_POWERS_OF_TWO = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
_REQUEST = (OPERATION, PROVIDER, MODEL)

# Metrics of requests. Names and buckets of the first three are those of the GenAI semantic conventions.
TIME_TO_FIRST_TOKEN = _metric(
    "gen_ai.server.time_to_first_token",
    "histogram",
    "s",
    "From admission to the first token.",
    *_REQUEST,
    buckets=(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
TIME_PER_OUTPUT_TOKEN = _metric(
    "gen_ai.server.time_per_output_token",
    "histogram",
    "s",
    "Mean time of each token after the first, one value a request.",
    *_REQUEST,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
REQUEST_DURATION = _metric(
    "gen_ai.server.request.duration",
    "histogram",
    "s",
    "From admission to the last message.",
    *_REQUEST,
    ERROR_TYPE,
    buckets=(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
REQUESTS = _metric("specdec.requests", "counter", "{request}", "Requests that ended.", FINISH_REASONS, STATUS_CODE)
ACTIVE_REQUESTS = _metric("specdec.requests.active", "gauge", "{request}", "Requests being served.")

# Metrics of speculation; the first four mirror vLLM's.
NUM_DRAFTS = _metric("specdec.spec_decode.num_drafts", "counter", "{round}", "Rounds with draft tokens.", DRAFT_SOURCE)
NUM_DRAFT_TOKENS = _metric(
    "specdec.spec_decode.num_draft_tokens", "counter", "{token}", "Draft tokens verified.", DRAFT_SOURCE
)
NUM_ACCEPTED_TOKENS = _metric(
    "specdec.spec_decode.num_accepted_tokens", "counter", "{token}", "Draft tokens accepted.", DRAFT_SOURCE
)
NUM_ACCEPTED_TOKENS_PER_POS = _metric(
    "specdec.spec_decode.num_accepted_tokens_per_pos",
    "counter",
    "{token}",
    "Draft tokens accepted, by position in the window.",
    POSITION,
)
RESYNCS = _metric(
    "specdec.resyncs", "counter", "{sequence}", "Sequences opened again because a cache was lost or out of step.", LINK
)
FAILOVERS = _metric("specdec.failovers", "counter", "{sequence}", "Sequences opened again on another replica.", LINK)
FALLBACKS = _metric(
    "specdec.fallbacks", "counter", "{round}", "Rounds without the drafts that were wanted, by cause.", CAUSE
)
STALE_EVENTS = _metric("specdec.stale_events", "counter", "{event}", "Late or unknown events that were dropped.", LINK)
ROUND_DURATION = _metric(
    "specdec.round.duration", "histogram", "s", "Wall time of a round.", buckets=_MILLISECONDS_TO_A_MINUTE
)
INTER_TOKEN_LATENCY = _metric(
    "specdec.inter_token_latency", "histogram", "s", "Between tokens, by rounds.", buckets=_MILLISECONDS_TO_A_MINUTE
)
OVERLAP = _metric(
    "specdec.round.overlap", "counter", "s", "Drafting that nobody waited for, by its outcome.", AHEAD_OUTCOME
)
ROUND_PART_DURATION = _metric(
    "specdec.round.part.duration",
    "histogram",
    "s",
    "Where the time of a round went.",
    ROUND_PART,
    buckets=(0.0001, *_MILLISECONDS_TO_A_MINUTE),
)

# Metrics of links.
BYTES_SENT = _metric("specdec.link.bytes_sent", "counter", "By", "Bytes of messages sent to a service.", LINK)
BYTES_RECEIVED = _metric("specdec.link.bytes_received", "counter", "By", "Bytes of messages received from it.", LINK)
DRAFT_AVAILABLE = _metric("specdec.draft.available", "gauge", "1", "1 while a draft service can be used, else 0.")
REPLICAS_AVAILABLE = _metric(
    "specdec.replicas.available", "gauge", "{replica}", "Replicas of a service that take sequences.", LINK
)

# Metrics of the draft and the target service.
OPEN_SEQUENCES = _metric("specdec.sequences.open", "gauge", "{sequence}", "Sequences open.", SERVICE)
EXPIRED_LEASES = _metric(
    "specdec.sequences.expired", "counter", "{sequence}", "Sequences closed since nothing was asked of them.", SERVICE
)
QUEUE_LENGTH = _metric("specdec.queue.length", "gauge", "{command}", "Commands waiting for a forward pass.", SERVICE)
FORWARD_DURATION = _metric(
    "specdec.forward.duration",
    "histogram",
    "s",
    "Duration of a forward pass.",
    SERVICE,
    buckets=_MILLISECONDS_TO_A_MINUTE,
)
FORWARD_SEQUENCE_COUNT = _metric(
    "specdec.forward.sequences",
    "histogram",
    "{sequence}",
    "Sequences in a forward pass.",
    SERVICE,
    buckets=_POWERS_OF_TWO,
)
FORWARD_ROW_COUNT = _metric(
    "specdec.forward.rows", "histogram", "{row}", "Rows (tokens) in a forward pass.", SERVICE, buckets=_POWERS_OF_TWO
)

# Metrics of drafting ahead, of the draft service.
AHEAD_PROPOSALS = _metric(
    "specdec.draft.ahead.proposals",
    "counter",
    "{proposal}",
    "Proposals of sequences that were drafted ahead for, by whether that helped.",
    AHEAD_OUTCOME,
)
AHEAD_WASTED_TOKENS = _metric(
    "specdec.draft.ahead.wasted_tokens",
    "counter",
    "{token}",
    "Tokens drafted ahead that no proposal had, by cause.",
    CAUSE,
)

# Metrics of candidate windows, of the target service.
CANDIDATE_WINDOWS = _metric(
    "specdec.candidate.windows",
    "counter",
    "{window}",
    "Windows sent for outcomes that were not known yet, by what became of them.",
    CANDIDATE_OUTCOME,
)

# Metrics of key-value memory, of both.
KV_BLOCKS = _metric("specdec.kv.blocks", "gauge", "{block}", "Blocks of key-value memory.", SERVICE, KV_BLOCK_STATE)
KV_EVICTIONS = _metric(
    "specdec.kv.evictions", "counter", "{block}", "Cached blocks that were given up for others.", SERVICE
)
KV_PREEMPTIONS = _metric(
    "specdec.kv.preemptions",
    "counter",
    "{sequence}",
    "Caches that sequences lost to older ones, to be computed again.",
    SERVICE,
)
KV_QUEUED_SEQUENCES = _metric(
    "specdec.kv.queued_sequences", "gauge", "{sequence}", "Sequences that wait for key-value memory.", SERVICE
)
PREFIX_QUERIED_TOKENS = _metric(
    "specdec.kv.prefix.queried_tokens", "counter", "{token}", "Tokens of sequences that were opened.", SERVICE
)
PREFIX_HIT_TOKENS = _metric(
    "specdec.kv.prefix.hit_tokens", "counter", "{token}", "How many of them were found in the prefix cache.", SERVICE
)

"""What is shown of a process: levels as they are, rates from two scrapes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from specdec.telemetry import names
from specdec.telemetry.prometheus import prometheus_label
from specdec.top.interval import Interval
from specdec.top.scrape import Scrape
from specdec.waterfall.printable import printable

_PREFIX = "specdec-"
_LINK = prometheus_label(names.LINK)


@dataclass(frozen=True)
class KvBlocks:
    """Blocks of key-value memory."""

    used: int
    cached: int
    free: int

    @property
    def total(self) -> int:
        """All there are."""
        return self.used + self.cached + self.free


@dataclass(frozen=True)
class Reading:
    """A process now. What is None is not known: it counts no such thing, or nothing of the kind happened meanwhile."""

    address: str
    service: str = ""
    """`orchestrator`, `target` or `draft`; empty: not known."""
    problem: str = ""
    """Why nothing could be read; empty: it could."""
    interval_seconds: float | None = None
    """What the rates are of."""

    active_requests: int | None = None
    """Of an orchestrator, as those up to the events."""
    targets_available: int | None = None
    drafts_available: int | None = None
    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    """Committed by rounds, before any trimming at a stop."""
    num_draft_tokens: float | None = None
    """K: draft tokens a round that had some, on average."""
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    """1 + accepted / rounds: the bonus or recovered token is counted."""
    ttft_p50_seconds: float | None = None
    tpot_p50_seconds: float | None = None
    failovers: int | None = None
    resyncs: int | None = None
    fallbacks: dict[str, int] = field(default_factory=dict)
    """Rounds without the drafts that were wanted, by cause."""

    open_sequences: int | None = None
    """Of a target or draft service, as all below."""
    queued_commands: int | None = None
    queued_sequences: int | None = None
    """Sequences that wait for key-value memory."""
    forwards_per_second: float | None = None
    busy_share: float | None = None
    """Of the time, with a forward pass running."""
    batch_sequences: float | None = None
    """In a forward pass, on average."""
    batch_rows: float | None = None
    kv_blocks: KvBlocks | None = None

    def to_dict(self) -> dict[str, object]:
        """As JSON values."""
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}


def reading(address: str, before: Scrape | None, now: Scrape) -> Reading:
    """A process that answered.

    Args:
        address: where.
        before: the scrape before this one; None: there is none, and so no rates.
        now: the newest scrape.
    """
    service = service_of(now)
    interval = None if before is None else Interval(before, now)
    if service == "orchestrator":
        return _orchestrator(address, interval, now)
    return _service(address, service, interval, now)


def service_of(scrape: Scrape) -> str:
    """By what it counts, for its name may be any; empty if that is not known yet."""
    if scrape.of(names.ACTIVE_REQUESTS) or scrape.of(names.REPLICAS_AVAILABLE):
        return "orchestrator"
    for metric in (names.OPEN_SEQUENCES, names.QUEUE_LENGTH, names.KV_BLOCKS):
        for service in scrape.by_label(metric, names.SERVICE):
            if service in ("target", "draft"):
                return service
    return printable(scrape.service_name).removeprefix(_PREFIX)


def _orchestrator(address: str, interval: Interval | None, now: Scrape) -> Reading:
    levels = Reading(
        address,
        "orchestrator",
        active_requests=_whole(now.total(names.ACTIVE_REQUESTS)),
        targets_available=_whole(now.total(names.REPLICAS_AVAILABLE, **{_LINK: "target"})),
        drafts_available=_whole(now.total(names.REPLICAS_AVAILABLE, **{_LINK: "draft"})),
    )
    if interval is None:
        return levels
    drafts = interval.increase(names.NUM_DRAFTS)
    drafted = interval.increase(names.NUM_DRAFT_TOKENS)
    accepted = interval.increase(names.NUM_ACCEPTED_TOKENS)
    rounds = interval.increase(names.ROUND_DURATION, "_count")
    firsts = interval.increase(names.TIME_TO_FIRST_TOKEN, "_count")
    return Reading(
        address,
        "orchestrator",
        interval_seconds=interval.seconds,
        active_requests=levels.active_requests,
        targets_available=levels.targets_available,
        drafts_available=levels.drafts_available,
        requests_per_second=interval.rate(names.REQUESTS),
        tokens_per_second=(rounds + accepted + firsts) / interval.seconds,
        num_draft_tokens=_ratio(drafted, drafts),
        acceptance_rate=_ratio(accepted, drafted),
        mean_acceptance_length=1 + accepted / rounds if rounds else None,
        ttft_p50_seconds=interval.quantile(names.TIME_TO_FIRST_TOKEN, 0.5),
        tpot_p50_seconds=interval.quantile(names.TIME_PER_OUTPUT_TOKEN, 0.5),
        failovers=round(interval.increase(names.FAILOVERS)),
        resyncs=round(interval.increase(names.RESYNCS)),
        fallbacks={
            printable(cause): round(count)
            for cause, count in interval.increase_by(names.FALLBACKS, names.CAUSE).items()
        },
    )


def _service(address: str, service: str, interval: Interval | None, now: Scrape) -> Reading:
    blocks = now.by_label(names.KV_BLOCKS, names.KV_BLOCK_STATE)
    return Reading(
        address,
        service,
        interval_seconds=None if interval is None else interval.seconds,
        open_sequences=_whole(now.total(names.OPEN_SEQUENCES)),
        queued_commands=_whole(now.total(names.QUEUE_LENGTH)),
        queued_sequences=_whole(now.total(names.KV_QUEUED_SEQUENCES)),
        forwards_per_second=None if interval is None else interval.rate(names.FORWARD_DURATION, "_count"),
        # A pass is counted when it has ended, and may have begun before the interval did.
        busy_share=None if interval is None else min(1.0, interval.rate(names.FORWARD_DURATION, "_sum")),
        batch_sequences=None if interval is None else interval.mean(names.FORWARD_SEQUENCE_COUNT),
        batch_rows=None if interval is None else interval.mean(names.FORWARD_ROW_COUNT),
        kv_blocks=KvBlocks(*(round(blocks.get(state, 0)) for state in ("used", "cached", "free"))) if blocks else None,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None

"""What a run came to: a table for people, one JSON object for programs."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tests.chaos.comparing import Difference
from tests.chaos.injecting import Injected
from tests.chaos.load import Stream

_MAX_EXAMPLES = 5


@dataclass(frozen=True)
class ChaosReport:
    """Numbers of one run; seconds and tokens."""

    seed: int
    seconds: float
    """That the load took."""
    num_requests: int
    """That ran to their end, failures included."""
    num_failed: int
    num_faults: int
    num_planned_faults: int
    difference: Difference
    ttft_seconds: dict[str, float]
    """median, p95, max."""
    longest_gap_seconds: dict[str, float]
    """In each stream; the same."""
    undisturbed_gap_seconds: dict[str, float]
    """The same without drafts, relays and faults."""
    faults: dict[str, dict[str, float]]
    """By kind: number, median and max of the longest gap that any stream had in one."""
    history: tuple[dict[str, str | float], ...]
    """Every fault: when it began and was made good, in seconds from the first one; what; to whom; the gap."""
    num_left: dict[str, int]
    """Sequences that services held at the end."""
    growth_bytes: dict[str, int]
    """Largest growth of the memory of a process from its start, by part."""
    longest_drain_seconds: float
    problems: tuple[str, ...] = ()
    """What else must not be, in words."""
    examples: tuple[str, ...] = field(default_factory=tuple)
    """Of failed requests and wrong outputs."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, duplicated, changed, failed or left."""
        return not (self.num_failed or self.difference or any(self.num_left.values()) or self.problems)

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {**asdict(self), "is_clean": self.is_clean}

    def lines(self) -> list[str]:
        """As text."""
        wrong = self.difference
        lines = [
            f"seed {self.seed}: {self.num_requests} requests, {self.num_faults} of {self.num_planned_faults} faults,"
            f" {self.seconds:.0f} s",
            "",
            f"{'failed requests':<28}{self.num_failed:>8}",
            f"{'lost tokens':<28}{wrong.num_lost:>8}",
            f"{'duplicated tokens':<28}{wrong.num_duplicated:>8}",
            f"{'changed tokens':<28}{wrong.num_changed:>8}",
            f"{'wrong characters':<28}{wrong.num_wrong_characters:>8}",
            f"{'sequences left':<28}{sum(self.num_left.values()):>8}",
            "",
            f"{'seconds':<28}{'median':>8}{'p95':>8}{'max':>8}",
        ]
        for name, values in (
            ("first token", self.ttft_seconds),
            ("longest gap in a stream", self.longest_gap_seconds),
            ("the same, undisturbed", self.undisturbed_gap_seconds),
        ):
            lines.append(f"{name:<28}" + "".join(f"{values[key]:>8.2f}" for key in ("median", "p95", "max")))
        lines += ["", f"{'longest gap of any stream':<28}{'faults':>8}{'median':>8}{'max':>8}"]
        for name, row in self.faults.items():
            lines.append(f"{name:<28}{row['number']:>8.0f}{row['median']:>8.2f}{row['max']:>8.2f}")
        worst = sorted(self.history, key=lambda each: -float(each["gap"]))[:_MAX_EXAMPLES]
        lines += ["", *(f"{each['gap']:.2f} s without a token: {_told(each)}" for each in worst)]
        growth = ", ".join(f"{part} {value / 2**20:.0f} MiB" for part, value in self.growth_bytes.items())
        lines += [
            "",
            f"memory grew by at most: {growth}; slowest end after SIGTERM: {self.longest_drain_seconds:.1f} s",
        ]
        lines += [f"PROBLEM: {problem}" for problem in self.problems]
        lines += [f"for example: {example}" for example in self.examples]
        lines.append("clean" if self.is_clean else f"NOT CLEAN; to run the same faults again: --seed {self.seed}")
        return lines


def make_report(
    *,
    seed: int,
    seconds: float,
    streams: Sequence[Stream],
    undisturbed: Sequence[Stream],
    injected: Sequence[Injected],
    num_planned_faults: int,
    num_left: Mapping[str, int],
    growth_bytes: Mapping[str, int],
    problems: Iterable[str],
) -> ChaosReport:
    """Count and summarise.

    Args:
        seed: of requests and faults.
        seconds: that the load took.
        streams: of the load.
        undisturbed: of the same requests before it.
        injected: faults that happened.
        num_planned_faults: how many there were to be.
        num_left: sequences at the end, by process.
        growth_bytes: of memory, by part.
        problems: what else must not be.
    """
    ended = [stream for stream in streams if stream.is_over and not stream.is_cancelled]
    examples = [f"request {stream.number} failed: {stream.failure}" for stream in ended if stream.failure]
    examples += [f"request {stream.number}: {stream.difference}" for stream in ended if stream.difference]
    return ChaosReport(
        seed=seed,
        seconds=seconds,
        num_requests=len(ended),
        num_failed=sum(bool(stream.failure) for stream in ended),
        num_faults=len(injected),
        num_planned_faults=num_planned_faults,
        difference=sum((stream.difference for stream in ended), Difference()),
        ttft_seconds=_spread([stream.arrivals[0] - stream.sent for stream in ended if stream.arrivals]),
        longest_gap_seconds=_spread([stream.longest_gap_seconds for stream in ended]),
        undisturbed_gap_seconds=_spread([stream.longest_gap_seconds for stream in undisturbed]),
        faults=_by_kind(injected, streams),
        history=_history(injected, streams),
        num_left=dict(num_left),
        growth_bytes=dict(growth_bytes),
        longest_drain_seconds=max((each.drain_seconds for each in injected if each.drain_seconds), default=0.0),
        problems=tuple(problems),
        examples=tuple(text for text, _ in Counter(examples).most_common(_MAX_EXAMPLES)),
    )


def _by_kind(injected: Sequence[Injected], streams: Sequence[Stream]) -> dict[str, dict[str, float]]:
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    for each in injected:
        gaps[each.fault.label].append(_gap_at(each, streams))
    return {
        label: {"number": len(values), "median": statistics.median(values), "max": max(values)}
        for label, values in sorted(gaps.items())
    }


def _history(injected: Sequence[Injected], streams: Sequence[Stream]) -> tuple[dict[str, str | float], ...]:
    first = min((each.began for each in injected), default=0.0)
    return tuple(
        {
            "began": round(each.began - first, 2),
            "ended": round(each.ended - first, 2),
            "what": each.fault.label,
            "victim": each.victim,
            "gap": round(_gap_at(each, streams), 3),
        }
        for each in injected
    )


def _told(fault: Mapping[str, str | float]) -> str:
    return f"{fault['what']}, {fault['victim']}, from {fault['began']:.1f} to {fault['ended']:.1f} s"


def _gap_at(injected: Injected, streams: Sequence[Stream]) -> float:
    """The longest interval of any stream that the fault fell into, or that began while it lasted."""
    return max(
        (
            end - begin
            for stream in streams
            for begin, end in stream.intervals
            if begin <= injected.ended and end >= injected.began
        ),
        default=0.0,
    )


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Of any number of values; zeros if there are none."""
    if not values:
        return {"median": 0.0, "p95": 0.0, "max": 0.0}
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "max": ordered[-1],
    }

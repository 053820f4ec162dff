"""How a round went, for the client, the trace and the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.drafted import Drafted
from orchestrator.verifier import Judged
from specdec.draft_source import LOOKUP_SOURCES, source_name
from specdec.telemetry import names
from specdec.telemetry.metrics import RoundTimes
from specdec.telemetry.tracing import AttributeValue
from specdec.v1 import draft_pb2, generation_pb2, model_pb2, target_pb2

_AHEAD_WORDS: dict[int, str] = {draft_pb2.AHEAD_OUTCOME_HIT: "hit", draft_pb2.AHEAD_OUTCOME_MISS: "miss"}
_NO_TIMINGS = model_pb2.Timings()


@dataclass(frozen=True, slots=True)
class Round:
    """One committed round; index 0 is the prefill."""

    index: int
    drafted: Drafted
    judged: Judged
    wall_seconds: float

    @property
    def num_draft_tokens(self) -> int:
        """Draft tokens in the window."""
        return len(self.judged.window)

    @property
    def num_accepted_tokens(self) -> int:
        """How many of them were accepted."""
        return len(self.judged.verdict.accepted_nodes)

    @property
    def num_steps(self) -> int:
        """Draft tokens in the window that each took a step of its own, if a model made it."""
        return self.judged.window.chain_length

    @property
    def num_accepted_steps(self) -> int:
        """How many of them were accepted."""
        nodes = self.judged.verdict.accepted_nodes
        return next((place for place, node in enumerate(nodes) if node != place), len(nodes))

    @property
    def accepted_runner_up(self) -> int | None:
        """Which of the other nodes was accepted, from 0; None if none was."""
        nodes = self.judged.verdict.accepted_nodes
        return nodes[-1] - self.num_steps if nodes and nodes[-1] >= self.num_steps else None

    @property
    def draft_source(self) -> str:
        """Where they came from, in a word; empty if there are none."""
        return source_name(self.drafted.source) if self.num_draft_tokens else ""

    @property
    def is_by_lookup(self) -> bool:
        """Whether they were looked up; the number of a source that is not known here counts as a model's."""
        return self.drafted.source in LOOKUP_SOURCES

    @property
    def ahead_outcome(self) -> str:
        """`hit` or `miss` if the draft service had drafted ahead, else empty."""
        return _AHEAD_WORDS.get(self.drafted.ahead, "")

    @property
    def draft_network_seconds(self) -> float:
        """What the draft service does not account for of the wait for it."""
        draft = self.drafted.timings or _NO_TIMINGS
        # It may have been at work before the wait began; what that overlapped was not lost.
        return max(0.0, self.drafted.wait_seconds - (draft.queue_microseconds + draft.compute_microseconds) / 1e6)

    @property
    def overlap_seconds(self) -> float:
        """Of the draft service's time, what nobody waited for."""
        draft = self.drafted.timings or _NO_TIMINGS
        return max(0.0, (draft.queue_microseconds + draft.compute_microseconds) / 1e6 - self.drafted.wait_seconds)

    @property
    def target_network_seconds(self) -> float:
        """What the target does not account for of the wait for it."""
        target = self.judged.verdict.timings
        return max(0.0, self.judged.wait_seconds - (target.queue_microseconds + target.compute_microseconds) / 1e6)

    @property
    def is_candidate(self) -> bool:
        """Whether the target had the window before the round began."""
        return self.judged.verdict.HasField("candidate")

    def times(self) -> RoundTimes:
        """Where the time went."""
        draft = self.drafted.timings or _NO_TIMINGS
        target = self.judged.verdict.timings
        draft_queue, draft_compute = draft.queue_microseconds / 1e6, draft.compute_microseconds / 1e6
        target_queue, target_compute = target.queue_microseconds / 1e6, target.compute_microseconds / 1e6
        network = self.draft_network_seconds + self.target_network_seconds
        waiting = max(0.0, self.wall_seconds - self.drafted.wait_seconds - self.judged.wait_seconds)
        return RoundTimes(draft_queue, draft_compute, target_queue, target_compute, network, waiting)

    def attributes(self) -> dict[str, AttributeValue]:
        """As attributes of the round's span."""
        verdict = self.judged.verdict
        is_bonus = verdict.next_token_kind == target_pb2.NEXT_TOKEN_KIND_BONUS
        attributes: dict[str, AttributeValue] = {
            names.ROUND_INDEX: self.index,
            names.ROUND_BASE_LENGTH: verdict.base_length,
            names.ROUND_NUM_DRAFT_TOKENS: self.num_draft_tokens,
            names.ROUND_NUM_ACCEPTED_TOKENS: self.num_accepted_tokens,
            names.ROUND_NEXT_TOKEN_KIND: "bonus" if is_bonus else "recovered",
            **self.times().attributes(),
        }
        if self.draft_source:
            attributes[names.DRAFT_SOURCE] = self.draft_source
        if self.is_candidate:
            attributes[names.ROUND_IS_CANDIDATE] = True
        if self.ahead_outcome:
            attributes[names.AHEAD_OUTCOME] = self.ahead_outcome
        if self.drafted.fallback_cause:
            attributes[names.ROUND_FALLBACK] = self.drafted.fallback_cause
        return attributes

    def write(self, report: generation_pb2.RoundReport) -> None:
        """Tell the client, in an empty report: one that is made and put into a message is copied."""
        drafted, judged = self.drafted, self.judged
        verdict = judged.verdict
        report.round = self.index
        report.base_length = verdict.base_length
        report.next_token_kind = verdict.next_token_kind
        report.wall_microseconds = round(self.wall_seconds * 1e6)
        report.draft_wait_microseconds = round(drafted.wait_seconds * 1e6)
        report.verify_wait_microseconds = round(judged.wait_seconds * 1e6)
        if drafted.timings is not None:
            report.draft.CopyFrom(drafted.timings)
        report.verify.CopyFrom(verdict.timings)
        if judged.window:
            report.num_draft_tokens = self.num_draft_tokens
            report.num_accepted_tokens = self.num_accepted_tokens
            report.draft_source = drafted.source
            if judged.window.distributions:
                report.lost_draft_mass = judged.window.lost_mass
        if drafted.ahead:
            report.draft_ahead = drafted.ahead
        if self.is_candidate:
            report.is_candidate = True

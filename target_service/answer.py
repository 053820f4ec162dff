"""What rounds are answered with, and how that travels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from specdec.telemetry import names
from specdec.telemetry.tracing import AttributeValue, timing_attributes
from specdec.v1 import model_pb2, sampling_pb2, target_pb2

_MAX_FEATURE_BYTES = 1 << 20
"""Of one batch of verdicts: messages are to stay below gRPC's customary 4 MiB."""


class Timings(NamedTuple):
    """Where the time of a round went; see the message."""

    queue_microseconds: int
    compute_microseconds: int
    batch_sequences: int
    batch_rows: int


class Answer(NamedTuple):
    """The outcome of one round. Kept by its sequence, as it may be asked for again."""

    sequence_id: bytes
    epoch: int
    round: int
    base_length: int
    num_judged_tokens: int
    accepted_nodes: list[int]
    next_token_id: int
    is_bonus: bool
    timings: Timings
    features: bytes = b""
    logprobs: Sequence[sampling_pb2.TokenLogprobs] = ()
    candidate: int | None = None
    """Which candidate window was judged; None: one that was asked for."""
    num_cached_tokens: int | None = None
    """Of an open: tokens found in the prefix cache; None: of a window."""

    def event(self) -> target_pb2.TargetEvent:
        """An event of its own."""
        event = target_pb2.TargetEvent(sequence_id=self.sequence_id, epoch=self.epoch, round=self.round)
        # Written in place: messages that are put into others are copied.
        verdict = event.verdict
        if self.num_cached_tokens is not None:
            event.opened.num_cached_tokens = self.num_cached_tokens
            verdict = event.opened.first
        verdict.base_length = self.base_length
        verdict.num_judged_tokens = self.num_judged_tokens
        verdict.accepted_nodes.extend(self.accepted_nodes)
        verdict.next_token_id = self.next_token_id
        verdict.next_token_kind = (
            target_pb2.NEXT_TOKEN_KIND_BONUS if self.is_bonus else target_pb2.NEXT_TOKEN_KIND_RECOVERED
        )
        verdict.committed_length = self.base_length + len(self.accepted_nodes) + 1
        verdict.logprobs.extend(self.logprobs)
        verdict.features = self.features
        if self.candidate is not None:
            verdict.candidate = self.candidate
        times = verdict.timings
        times.queue_microseconds, times.compute_microseconds, times.batch_sequences, times.batch_rows = self.timings
        return event

    def span_attributes(self, num_cached_tokens: int) -> dict[str, AttributeValue]:
        """What the span of the round says of it; `num_cached_tokens` were there when its sequence began."""
        return {
            names.ROUND_NUM_ACCEPTED_TOKENS: len(self.accepted_nodes),
            names.ROUND_NEXT_TOKEN_KIND: "bonus" if self.is_bonus else "recovered",
            names.CACHED_TOKENS: num_cached_tokens,
            **timing_attributes(model_pb2.Timings(**self.timings._asdict())),
        }


def batched(answers: Iterable[Answer]) -> Iterator[target_pb2.TargetEvent]:
    """Answers to windows of batches, all of one pass, in as few events as messages allow."""
    part: list[Answer] = []
    num_bytes = 0
    for answer in answers:
        num_bytes += len(answer.features)
        if part and num_bytes > _MAX_FEATURE_BYTES:
            yield _columns(part)
            part, num_bytes = [], len(answer.features)
        part.append(answer)
    if part:
        yield _columns(part)


def _columns(answers: list[Answer]) -> target_pb2.TargetEvent:
    event = target_pb2.TargetEvent()
    verdicts = event.verdicts
    ids, epochs, rounds, base_lengths, judged, accepted, next_ids, _, timings, features, *_ = zip(*answers, strict=True)
    verdicts.sequence_ids.extend(ids)
    verdicts.epochs.extend(epochs)
    verdicts.rounds.extend(rounds)
    verdicts.base_lengths.extend(base_lengths)
    verdicts.num_judged_tokens.extend(judged)
    verdicts.num_accepted_tokens.extend(map(len, accepted))
    verdicts.next_token_ids.extend(next_ids)
    queue, compute, sequences, rows = zip(*timings, strict=True)
    verdicts.queue_microseconds.extend(queue)
    verdicts.compute_microseconds.extend(compute)
    verdicts.batch_sequences, verdicts.batch_rows = sequences[0], rows[0]
    if any(features):
        verdicts.features.extend(features)
    return event

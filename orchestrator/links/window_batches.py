"""Windows and verdicts of many sequences in one message, for a target that says it reads them."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.links.stream import MalformedMessage
from orchestrator.window import Window
from specdec.v1 import model_pb2, target_pb2

MAX_WINDOWS = 1024
"""Of one command; a target takes four times as many."""
_MAX_JUDGED_TOKENS = 4096
"""Of one verdict: far above any window. Columns give a number for what becomes a list here."""


def fits_batch(window: Window, trace_context: model_pb2.TraceContext | None) -> bool:
    """Whether a window has nothing that a batch has no column for."""
    return not (
        window.parents
        or window.distributions
        or window.max_feature_tokens
        or (trace_context is not None and trace_context.traceparent)
    )


def add_window(
    batch: target_pb2.WindowBatch,
    sequence_id: bytes,
    epoch: int,
    round_index: int,
    base_length: int,
    checksum: int,
    window: Window,
) -> None:
    """Put one more into a batch."""
    batch.sequence_ids.append(sequence_id)
    batch.epochs.append(epoch)
    batch.rounds.append(round_index)
    batch.base_lengths.append(base_length)
    batch.checksums.append(checksum)
    batch.num_draft_tokens.append(len(window.token_ids))
    batch.token_ids.extend(window.token_ids)
    batch.without_features.append(window.without_features)


def single_verdicts(batch: target_pb2.VerdictBatch) -> Iterator[target_pb2.TargetEvent]:
    """The events that the same verdicts would be, each by itself.

    Raises:
        MalformedMessage: the columns do not match, or a verdict is impossible whatever was asked.
    """
    sequences, rows = batch.batch_sequences, batch.batch_rows
    features = batch.features[:] or [b""] * len(batch.sequence_ids)
    try:
        columns = zip(
            batch.sequence_ids[:],
            batch.epochs[:],
            batch.rounds[:],
            batch.base_lengths[:],
            batch.num_judged_tokens[:],
            batch.num_accepted_tokens[:],
            batch.next_token_ids[:],
            batch.queue_microseconds[:],
            batch.compute_microseconds[:],
            features,
            strict=True,
        )
        for sequence_id, epoch, round_index, base, judged, accepted, next_token_id, queue, compute, state in columns:
            if not accepted <= judged <= _MAX_JUDGED_TOKENS:
                raise MalformedMessage(f"it accepts {accepted} and judges {judged} tokens of a window")
            event = target_pb2.TargetEvent(sequence_id=sequence_id, epoch=epoch, round=round_index)
            # Written in place: messages that are put into others are copied.
            verdict = event.verdict
            verdict.base_length = base
            verdict.num_judged_tokens = judged
            verdict.accepted_nodes.extend(range(accepted))
            verdict.next_token_id = next_token_id
            verdict.next_token_kind = (
                target_pb2.NEXT_TOKEN_KIND_BONUS if accepted == judged else target_pb2.NEXT_TOKEN_KIND_RECOVERED
            )
            verdict.committed_length = base + accepted + 1
            verdict.features = state
            timings = verdict.timings
            timings.queue_microseconds, timings.compute_microseconds = queue, compute
            timings.batch_sequences, timings.batch_rows = sequences, rows
            yield event
    except ValueError:
        raise MalformedMessage("its columns are not equally long, or a length is out of range") from None

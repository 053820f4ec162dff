"""How a fake target reads windows that come in columns, and answers them in columns.

Written without the code that is tested: both sides of the wire are to agree with the protocol, not with each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

from specdec.v1 import target_pb2

Answered = tuple[bytes, int, int]
"""Sequence, epoch and round."""


class Columns:
    """Of one stream. Inside a fake every window is a command of its own, and every verdict an event."""

    def __init__(self) -> None:
        self._asked: set[Answered] = set()

    async def singly(
        self, messages: AsyncIterator[target_pb2.VerifyRequest]
    ) -> AsyncIterator[target_pb2.VerifyRequest]:
        """The messages as they would be if each window travelled alone."""
        async for message in messages:
            single = target_pb2.VerifyRequest()
            for command in message.commands:
                single.commands.extend(self._read(command) if command.HasField("windows") else [command])
            yield single

    def together(self, events: Iterable[target_pb2.TargetEvent]) -> Iterator[target_pb2.TargetEvent]:
        """The events in their order; verdicts of windows that came in a batch are in columns if those can tell them."""
        batch: list[target_pb2.TargetEvent] = []
        for event in events:
            answered = (event.sequence_id, event.epoch, event.round)
            if answered in self._asked and is_plain(event):
                # A second answer is none to a window of the batch.
                self._asked.discard(answered)
                if batch and not _are_of_one_pass(batch[0], event):
                    yield in_columns(batch)
                    batch = []
                batch.append(event)
                continue
            if batch:
                yield in_columns(batch)
                batch = []
            yield event
        if batch:
            yield in_columns(batch)

    def _read(self, command: target_pb2.TargetCommand) -> Iterator[target_pb2.TargetCommand]:
        windows = command.windows
        assert not command.sequence_id
        start = 0
        for index, sequence_id in enumerate(windows.sequence_ids):
            end = start + windows.num_draft_tokens[index]
            window = target_pb2.Window(
                epoch=windows.epochs[index],
                round=windows.rounds[index],
                base_length=windows.base_lengths[index],
                checksum=windows.checksums[index],
                token_ids=windows.token_ids[start:end],
                without_features=windows.without_features[index],
            )
            start = end
            self._asked.add((sequence_id, window.epoch, window.round))
            yield target_pb2.TargetCommand(sequence_id=sequence_id, window=window)
        assert start == len(windows.token_ids)


def is_plain(event: target_pb2.TargetEvent) -> bool:
    """Whether an event is a verdict with nothing that columns do not tell."""
    if not event.HasField("verdict"):
        return False
    verdict = event.verdict
    num_accepted = len(verdict.accepted_nodes)
    is_bonus = num_accepted == verdict.num_judged_tokens
    return (
        list(verdict.accepted_nodes) == list(range(num_accepted))
        and num_accepted <= verdict.num_judged_tokens
        and verdict.committed_length == verdict.base_length + num_accepted + 1
        and verdict.next_token_kind
        == (target_pb2.NEXT_TOKEN_KIND_BONUS if is_bonus else target_pb2.NEXT_TOKEN_KIND_RECOVERED)
        and not verdict.logprobs
        and not verdict.HasField("candidate")
    )


def in_columns(events: Iterable[target_pb2.TargetEvent]) -> target_pb2.TargetEvent:
    """Plain verdicts of one pass as one event."""
    batch = target_pb2.VerdictBatch()
    for event in events:
        verdict, timings = event.verdict, event.verdict.timings
        batch.sequence_ids.append(event.sequence_id)
        batch.epochs.append(event.epoch)
        batch.rounds.append(event.round)
        batch.base_lengths.append(verdict.base_length)
        batch.num_judged_tokens.append(verdict.num_judged_tokens)
        batch.num_accepted_tokens.append(len(verdict.accepted_nodes))
        batch.next_token_ids.append(verdict.next_token_id)
        batch.queue_microseconds.append(timings.queue_microseconds)
        batch.compute_microseconds.append(timings.compute_microseconds)
        batch.batch_sequences, batch.batch_rows = timings.batch_sequences, timings.batch_rows
        batch.features.append(verdict.features)
    if not any(batch.features):
        del batch.features[:]
    return target_pb2.TargetEvent(verdicts=batch)


def _are_of_one_pass(one: target_pb2.TargetEvent, other: target_pb2.TargetEvent) -> bool:
    timings, others = one.verdict.timings, other.verdict.timings
    return (timings.batch_sequences, timings.batch_rows) == (others.batch_sequences, others.batch_rows)

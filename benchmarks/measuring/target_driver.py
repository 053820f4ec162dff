"""A target service driven by hand over one stream, without an orchestrator: all windows of a round in one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.links.window_batches import add_window, single_verdicts
from orchestrator.window import Window
from specdec.checksum import prefix_checksum
from specdec.sampling.params import SamplingParams
from specdec.serving.channel import open_channel
from specdec.v1 import model_pb2, target_pb2, target_pb2_grpc

_MESSAGE_BYTES = 64 * 1024 * 1024


class TargetDriverError(Exception):
    """The target refused a sequence; the message is its own."""


@dataclass
class _Sequence:
    sequence_id: bytes
    length: int = 0
    checksum: int = 0
    round: int = 0

    def commit(self, token_ids: Sequence[int]) -> None:
        self.checksum = prefix_checksum(token_ids, self.checksum)
        self.length += len(token_ids)


async def drive_target(
    address: str,
    *,
    num_sequences: int,
    num_draft_tokens: int,
    prompt_length: int,
    max_length: int,
    temperature: float,
    on_opened: Callable[[], None],
) -> None:
    """Open sequences and send window after window, for all of them at once, until cancelled or the context is full.

    The target waits for sequences that it answered together, so each forward pass takes all windows.

    Args:
        address: of a target service that has nothing else to do.
        num_sequences: how many.
        num_draft_tokens: of each window; they are ids without sense, most of which are rejected.
        prompt_length: tokens of each prompt.
        max_length: longest sequence.
        temperature: of all requests; their seeds differ.
        on_opened: called once all prompts are prefilled, before the first windows.

    Raises:
        TargetDriverError: a sequence was refused.
        grpc.aio.AioRpcError: the stream broke.
    """
    sequences = {
        number.to_bytes(16, "little"): _Sequence(number.to_bytes(16, "little")) for number in range(num_sequences)
    }
    drafts = list(range(2, 2 + num_draft_tokens))
    outbox: asyncio.Queue[target_pb2.VerifyRequest] = asyncio.Queue()

    async def requests() -> AsyncIterator[target_pb2.VerifyRequest]:
        while True:
            yield await outbox.get()

    async with open_channel(address, max_message_bytes=_MESSAGE_BYTES) as channel:
        call = target_pb2_grpc.TargetServiceStub(channel).Verify(requests())
        commands = [
            _opening(sequence, number, prompt_length, max_length, temperature)
            for number, sequence in enumerate(sequences.values())
        ]
        try:
            outbox.put_nowait(target_pb2.VerifyRequest(commands=commands))
            num_missing = num_sequences
            is_opened = False
            async for response in call:
                for event in _single(response.events):
                    _take(sequences[event.sequence_id], event, drafts)
                    num_missing -= 1
                if num_missing == 0:
                    if not is_opened:
                        is_opened = True
                        on_opened()
                    if any(sequence.length + num_draft_tokens + 1 >= max_length for sequence in sequences.values()):
                        return
                    outbox.put_nowait(target_pb2.VerifyRequest(commands=[_windows(sequences.values(), drafts)]))
                    num_missing = num_sequences
        finally:
            call.cancel()


def _opening(
    sequence: _Sequence, number: int, prompt_length: int, max_length: int, temperature: float
) -> target_pb2.TargetCommand:
    # Every prompt is another one, so that none is found in a cache.
    prompt = [2 + (number + 3 * place * (number + 1)) % 200 for place in range(prompt_length)]
    sequence.commit(prompt)
    opening = target_pb2.TargetOpen(
        epoch=1,
        token_ids=prompt,
        prompt_length=prompt_length,
        sampling=SamplingParams(temperature=temperature, seed=number, ignore_eos=True).to_proto(),
        acceptance_rule=model_pb2.ACCEPTANCE_RULE_COUPLED,
        max_length=max_length,
    )
    return target_pb2.TargetCommand(sequence_id=sequence.sequence_id, open=opening)


def _windows(sequences: Iterable[_Sequence], drafts: Sequence[int]) -> target_pb2.TargetCommand:
    command = target_pb2.TargetCommand()
    window = Window(drafts)
    for sequence in sequences:
        sequence.round += 1
        add_window(command.windows, sequence.sequence_id, 1, sequence.round, sequence.length, sequence.checksum, window)
    return command


def _single(events: Iterable[target_pb2.TargetEvent]) -> Iterator[target_pb2.TargetEvent]:
    for event in events:
        if event.HasField("verdicts"):
            yield from single_verdicts(event.verdicts)
        else:
            yield event


def _take(sequence: _Sequence, event: target_pb2.TargetEvent, drafts: Sequence[int]) -> None:
    if event.HasField("failed"):
        raise TargetDriverError(event.failed.message)
    verdict = event.opened.first if event.HasField("opened") else event.verdict
    sequence.commit([*(drafts[node] for node in verdict.accepted_nodes), verdict.next_token_id])

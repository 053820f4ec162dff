"""A target service driven by hand over one stream, without an orchestrator: passes of exactly so many sequences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass, field

from specdec.checksum import prefix_checksum
from specdec.sampling.params import SamplingParams
from specdec.serving.channel import open_channel
from specdec.v1 import model_pb2, target_pb2, target_pb2_grpc

_MESSAGE_BYTES = 64 * 1024 * 1024
_NUM_GROUPS = 2
"""While one waits for its pass, the windows of the other arrive: so a pass takes all of a group, and nothing else."""


class TargetDriverError(Exception):
    """The target refused a sequence; the message is its own."""


@dataclass
class _Sequence:
    sequence_id: bytes
    length: int
    checksum: int
    round: int = 0

    def commit(self, token_ids: Sequence[int]) -> None:
        self.checksum = prefix_checksum(token_ids, self.checksum)
        self.length += len(token_ids)


@dataclass
class _Group:
    sequences: dict[bytes, _Sequence]
    events: asyncio.Queue[target_pb2.TargetEvent] = field(default_factory=asyncio.Queue)


async def drive_target(
    address: str, *, num_sequences: int, num_draft_tokens: int, prompt_length: int, max_length: int
) -> None:
    """Open two groups of sequences and send window after window to each, until cancelled or the context is full.

    Args:
        address: of a target service that has nothing else to do.
        num_sequences: of each group, and so of each forward pass.
        num_draft_tokens: of each window; they are ids without sense, most of which are rejected.
        prompt_length: tokens of each prompt.
        max_length: longest sequence.

    Raises:
        TargetDriverError: a sequence was refused.
        grpc.aio.AioRpcError: the stream broke.
    """
    groups = []
    for group in range(_NUM_GROUPS):
        sequences = {}
        for number in range(num_sequences):
            sequence_id = (group * num_sequences + number).to_bytes(16, "little")
            sequences[sequence_id] = _Sequence(sequence_id, 0, 0)
        groups.append(_Group(sequences))
    outbox: asyncio.Queue[target_pb2.VerifyRequest] = asyncio.Queue()

    async def requests() -> AsyncIterator[target_pb2.VerifyRequest]:
        while True:
            yield await outbox.get()

    async with open_channel(address, max_message_bytes=_MESSAGE_BYTES) as channel:
        call = target_pb2_grpc.TargetServiceStub(channel).Verify(requests())
        work = [
            asyncio.create_task(_rounds(group, index, outbox, num_draft_tokens, prompt_length, max_length))
            for index, group in enumerate(groups)
        ]
        work.append(asyncio.create_task(_deliver(call, groups)))
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            call.cancel()
            await asyncio.gather(*work, return_exceptions=True)


async def _deliver(call: AsyncIterable[target_pb2.VerifyResponse], groups: Sequence[_Group]) -> None:
    async for response in call:
        for event in response.events:
            next(group for group in groups if event.sequence_id in group.sequences).events.put_nowait(event)


async def _rounds(
    group: _Group,
    index: int,
    outbox: asyncio.Queue[target_pb2.VerifyRequest],
    num_draft_tokens: int,
    prompt_length: int,
    max_length: int,
) -> None:
    # Every prompt is another one, so that none is found in a cache.
    sampling = SamplingParams(temperature=0.0, ignore_eos=True).to_proto()
    commands = []
    for number, sequence in enumerate(group.sequences.values()):
        prompt = [2 + (number + 7 * index + 3 * place * (number + 1)) % 200 for place in range(prompt_length)]
        sequence.commit(prompt)
        opening = target_pb2.TargetOpen(
            epoch=1,
            token_ids=prompt,
            prompt_length=prompt_length,
            sampling=sampling,
            acceptance_rule=model_pb2.ACCEPTANCE_RULE_COUPLED,
            max_length=max_length,
        )
        commands.append(target_pb2.TargetCommand(sequence_id=sequence.sequence_id, open=opening))
    drafts = list(range(2, 2 + num_draft_tokens))
    while all(sequence.length + num_draft_tokens + 1 < max_length for sequence in group.sequences.values()):
        outbox.put_nowait(target_pb2.VerifyRequest(commands=commands))
        for _ in group.sequences:
            event = await group.events.get()
            if event.HasField("failed"):
                raise TargetDriverError(event.failed.message)
            verdict = event.opened.first if event.HasField("opened") else event.verdict
            accepted = [drafts[node] for node in verdict.accepted_nodes]
            group.sequences[event.sequence_id].commit([*accepted, verdict.next_token_id])
        commands = [_window(sequence, drafts) for sequence in group.sequences.values()]


def _window(sequence: _Sequence, drafts: Sequence[int]) -> target_pb2.TargetCommand:
    sequence.round += 1
    window = target_pb2.Window(
        epoch=1, round=sequence.round, base_length=sequence.length, checksum=sequence.checksum, token_ids=drafts
    )
    return target_pb2.TargetCommand(sequence_id=sequence.sequence_id, window=window)

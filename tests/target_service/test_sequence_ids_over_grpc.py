"""A sequence id means something on its own stream only."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from specdec.checksum import prefix_checksum
from specdec.sampling.params import SamplingParams
from specdec.serving.channel import open_channel
from specdec.serving.host import ServiceHost
from specdec.v1 import model_pb2, target_pb2, target_pb2_grpc
from target_service.service import TargetService
from target_service.settings import TargetSettings
from tests.exactness.table_model import loaded_table, target_and_draft

SECONDS = 20
SEQUENCE_ID = b"sixteen bytes!!!"
PROMPT = [3]


async def tell(call: Any, **command: Any) -> None:
    """Send one command for the sequence."""
    message = target_pb2.TargetCommand(sequence_id=SEQUENCE_ID, **command)
    await call.write(target_pb2.VerifyRequest(commands=[message]))


async def event_on(call: Any) -> target_pb2.TargetEvent:
    """The next event; messages that only tell the load are passed over."""
    while True:
        response = await asyncio.wait_for(call.read(), SECONDS)
        assert response is not grpc.aio.EOF
        if response.events:
            event: target_pb2.TargetEvent
            (event,) = response.events
            assert event.sequence_id == SEQUENCE_ID
            return event


def opening(token_ids: list[int]) -> target_pb2.TargetOpen:
    return target_pb2.TargetOpen(
        epoch=1,
        token_ids=token_ids,
        prompt_length=len(token_ids),
        sampling=SamplingParams(temperature=0.0).to_proto(),
        acceptance_rule=model_pb2.ACCEPTANCE_RULE_COUPLED,
        max_length=20,
    )


def window(committed: list[int], round_index: int) -> target_pb2.Window:
    return target_pb2.Window(
        epoch=1, round=round_index, base_length=len(committed), checksum=prefix_checksum(committed)
    )


async def greedy(call: Any, num_tokens: int) -> list[int]:
    """Tokens behind the prompt, by rounds without drafts."""
    await tell(call, open=opening(PROMPT))
    committed = [*PROMPT, (await event_on(call)).opened.first.next_token_id]
    while len(committed) < len(PROMPT) + num_tokens:
        await tell(call, window=window(committed, len(committed) - len(PROMPT)))
        committed.append((await event_on(call)).verdict.next_token_id)
    return committed


async def test_another_connection_can_neither_use_nor_close_nor_replace_a_sequence() -> None:
    model = loaded_table(target_and_draft(seed=0)[0])
    service = TargetService(TargetSettings(max_num_sequences=16, max_batch_rows=64), lambda: model)
    async with (
        ServiceHost(service, host="127.0.0.1", port=0, drain_seconds=2.0) as host,
        open_channel(host.address, max_message_bytes=1 << 22) as channel,
        open_channel(host.address, max_message_bytes=1 << 22) as stranger_channel,
    ):
        alone = target_pb2_grpc.TargetServiceStub(channel).Verify()
        expected = await greedy(alone, 6)
        alone.cancel()

        owner = target_pb2_grpc.TargetServiceStub(channel).Verify()
        committed = await greedy(owner, 3)
        # On a connection of its own, and on another stream of the same one.
        for thief_channel in (stranger_channel, channel):
            thief = target_pb2_grpc.TargetServiceStub(thief_channel).Verify()
            await tell(thief, window=window(committed, len(committed) - len(PROMPT)))
            refused = await event_on(thief)
            assert refused.failed.code == grpc.StatusCode.FAILED_PRECONDITION.value[0], refused
            await tell(thief, close=target_pb2.TargetClose())
            await tell(thief, open=opening([1, 2]))
            assert (await event_on(thief)).HasField("opened")
            await tell(thief, close=target_pb2.TargetClose())
            await tell(thief, open=opening([1, 2]))
            assert (await event_on(thief)).HasField("opened")
            thief.cancel()

        while len(committed) < len(expected):
            await tell(owner, window=window(committed, len(committed) - len(PROMPT)))
            committed.append((await event_on(owner)).verdict.next_token_id)
        assert committed == expected
        owner.cancel()

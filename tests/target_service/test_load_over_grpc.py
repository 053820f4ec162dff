"""How busy a target is, as its peers are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from specdec.sampling.params import SamplingParams
from specdec.serving.channel import open_channel
from specdec.serving.host import ServiceHost
from specdec.v1 import model_pb2, target_pb2, target_pb2_grpc
from target_service.service import TargetService
from target_service.settings import TargetSettings
from tests.exactness.table_model import loaded_table, target_and_draft

SECONDS = 20


async def loads(call: Any) -> AsyncIterator[model_pb2.Load]:
    async for response in call:
        yield response.load


async def test_a_peer_is_told_at_once_and_whenever_another_changes_the_load() -> None:
    model = loaded_table(target_and_draft(seed=0)[0])
    service = TargetService(TargetSettings(max_num_sequences=16, max_batch_rows=64), lambda: model)
    async with (
        ServiceHost(service, host="127.0.0.1", port=0, drain_seconds=2.0) as host,
        open_channel(host.address, max_message_bytes=1 << 22) as channel,
    ):
        stub = target_pb2_grpc.TargetServiceStub(channel)
        idle, busy = stub.Verify(), stub.Verify()
        heard = loads(idle)
        first = await asyncio.wait_for(anext(heard), SECONDS)
        assert first.num_sequences == 0
        assert first.num_free_tokens > 0
        opening = target_pb2.TargetOpen(
            epoch=1,
            token_ids=[3],
            prompt_length=1,
            sampling=SamplingParams(temperature=0.0).to_proto(),
            acceptance_rule=model_pb2.ACCEPTANCE_RULE_COUPLED,
            max_length=20,
        )
        await busy.write(
            target_pb2.VerifyRequest(commands=[target_pb2.TargetCommand(sequence_id=bytes(16), open=opening)])
        )
        second = await asyncio.wait_for(anext(heard), SECONDS)
        assert second.num_sequences == 1
        assert second.num_free_tokens < first.num_free_tokens
        busy.cancel()
        assert await asyncio.wait_for(anext(heard), SECONDS) == first
        idle.cancel()

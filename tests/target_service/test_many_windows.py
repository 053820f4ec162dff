"""Batches of windows that one peer sends do not keep those of others waiting for long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from specdec.engine.thread import EngineThread
from specdec.serving.channel import open_channel
from specdec.v1 import target_pb2, target_pb2_grpc
from target_service.asked import num_windows
from tests.exactness.whole_system import hosted, target_service


def batch(count: int) -> target_pb2.TargetCommand:
    """Windows of sequences that nobody has opened."""
    columns = target_pb2.WindowBatch(
        sequence_ids=[bytes(16)] * count,
        epochs=[1] * count,
        rounds=[1] * count,
        base_lengths=[1] * count,
        checksums=[0] * count,
        num_draft_tokens=[0] * count,
        without_features=[False] * count,
    )
    return target_pb2.TargetCommand(windows=columns)


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (batch(3), 3),
        (batch(0), 1),
        (target_pb2.TargetCommand(close=target_pb2.TargetClose()), 1),
        (target_pb2.TargetCommand(), 1),
    ],
)
def test_a_command_counts_as_many_as_its_windows(command: target_pb2.TargetCommand, number: int) -> None:
    had_windows = command.HasField("windows")
    assert num_windows(command) == number
    assert command.HasField("windows") is had_windows


@asynccontextmanager
async def verifying() -> AsyncIterator[Any]:
    async with hosted(target_service()) as host, open_channel(host.address, max_message_bytes=4 << 20) as channel:
        call = target_pb2_grpc.TargetServiceStub(channel).Verify()
        yield call
        call.cancel()


async def test_the_engine_takes_few_large_batches_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[tuple[int, int]] = []
    submit = EngineThread.submit

    def watch(self: EngineThread[Any], *commands: Any, weight: int | None = None, num_bytes: int = 0) -> None:
        submitted.append((len(commands), weight or 0))
        submit(self, *commands, weight=weight, num_bytes=num_bytes)

    monkeypatch.setattr(EngineThread, "submit", watch)
    async with verifying() as call:
        await call.write(target_pb2.VerifyRequest(commands=[batch(100)] * 4 + [batch(1000)]))
        num_failed = 0
        while num_failed < 1400:
            num_failed += len((await call.read()).events)
        assert submitted == [(3, 300), (2, 1100)]

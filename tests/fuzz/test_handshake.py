"""Services that say nonsense of themselves, and bytes that are no answer: a clear status, and no bug in the log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from specdec.v1 import target_pb2
from tests.fuzz.random_messages import RandomMessages
from tests.fuzz.report import Report
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import PROMPT, Running, request, running
from tests.orchestrator.serving import until
from tests.orchestrator.table import plain_continuation

NUM_TARGETS = 25


async def ask(run: Running, report: Report) -> list[int]:
    """The tokens of a request, whose status may be anything but a bug."""
    tokens: list[int] = []
    call = run.stub.Generate(request(max_new_tokens=8), timeout=20)
    try:
        async for response in call:
            tokens += response.delta.token_ids
    except grpc.aio.AioRpcError:
        pass
    report.status(await call.code(), await call.details())
    return tokens


def spoilt_info(rng: random.Random, fake: FakeTarget | FakeDraft) -> None:
    info = RandomMessages(rng).spoilt(fake.model_info)
    info.protocol_version = fake.model_info.protocol_version
    fake.model_info.CopyFrom(info)


async def test_a_target_that_says_nonsense_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    rng, report = random.Random(1), Report("handshake", 1)
    for _ in range(NUM_TARGETS):
        target = FakeTarget()
        spoilt_info(rng, target)
        async with running(target, wait=False, round_timeout_seconds=0.5) as run:
            for _ in range(300):
                problem = run.service.targets.problem
                if run.service.targets.is_available or not ("no address yet" in problem or "not connected" in problem):
                    break
                await asyncio.sleep(0.01)
            await ask(run, report)
    assert "connecting to the target service failed" not in caplog.text
    assert report.codes["OK"] > 0, "not all that is odd is wrong"


async def test_a_draft_service_that_says_nonsense_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    rng, report = random.Random(2), Report("handshake", 2)
    for _ in range(NUM_TARGETS):
        draft = FakeDraft()
        spoilt_info(rng, draft)
        async with running(FakeTarget(), draft, wait=False, draft_timeout_seconds=0.2) as run:
            await until(lambda run=run: run.service.targets.is_available)  # type: ignore[misc]
            assert await ask(run, report) == plain_continuation(PROMPT, 8)
    assert "connecting to the draft service failed" not in caplog.text


async def test_bytes_that_are_no_answer(monkeypatch: pytest.MonkeyPatch, short_pauses: None) -> None:
    target, report, num_junk = FakeTarget(), Report("junk", 3), 0
    rng = random.Random(3)
    serialize: Callable[[Any], bytes] = target_pb2.VerifyResponse.SerializeToString

    def junk(response: Any) -> bytes:
        nonlocal num_junk
        if rng.random() < 0.1:
            num_junk += 1
            return b"\xff\xff\xff"
        return serialize(response)

    monkeypatch.setattr("specdec.v1.target_pb2_grpc.specdec_dot_v1_dot_target__pb2.VerifyResponse", _Junk(junk))
    async with running(target, wait=False) as run:
        await until(lambda: run.service.targets.is_available)
        monkeypatch.undo()
        for _ in range(6):
            tokens = await ask(run, report)
            assert tokens == plain_continuation(PROMPT, 8)[: len(tokens)]
    assert num_junk > 0
    assert report.codes["OK"] > 0


class _Junk:
    """In place of the class of a message, for the code that makes the handlers of a server."""

    def __init__(self, serialize: Callable[[Any], bytes]) -> None:
        self.SerializeToString = serialize
        self.FromString = target_pb2.VerifyResponse.FromString
        self._make = target_pb2.VerifyResponse

    def __call__(self, **fields: Any) -> target_pb2.VerifyResponse:
        """The stream may begin before the class is put back."""
        return self._make(**fields)

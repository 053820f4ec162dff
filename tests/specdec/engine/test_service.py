"""The part of a service that runs the engine: loading, health, draining, stopping."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
from grpc_health.v1 import health_pb2

from draft_service.drafters.ngram import NgramDrafter
from draft_service.engine import DraftEngine
from draft_service.sequence import DraftSequence
from specdec.engine import service
from specdec.engine.service import EngineHost
from specdec.engine.stream import run_stream
from specdec.errors import UnavailableError
from specdec.sampling.params import SamplingParams
from specdec.serving.health import LIVENESS_NAME, Health
from specdec.v1 import draft_pb2, model_pb2

SECONDS = 5.0

Host = EngineHost[draft_pb2.DraftCommand, draft_pb2.DraftEvent, DraftSequence]


def make_engine() -> DraftEngine:
    return DraftEngine(NgramDrafter(min_length=1, max_length=2, max_num_draft_tokens=4, max_num_sequences=4))


def open_command() -> draft_pb2.DraftCommand:
    return draft_pb2.DraftCommand(
        sequence_id=bytes(16),
        open=draft_pb2.DraftOpen(
            epoch=1,
            token_ids=[1, 2, 1],
            prompt_length=3,
            sampling=SamplingParams().to_proto(),
            acceptance_rule=model_pb2.ACCEPTANCE_RULE_COUPLED,
            num_draft_tokens=2,
        ),
    )


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.002)


class Peer:
    """One stream on the host, with one sequence."""

    def __init__(self, host: Host) -> None:
        self.commands: asyncio.Queue[draft_pb2.DraftCommand | None] = asyncio.Queue()
        self.events: list[draft_pb2.DraftEvent] = []
        self.commands.put_nowait(open_command())
        self.task = asyncio.create_task(self._run(host))

    async def _run(self, host: Host) -> None:
        async def messages() -> AsyncIterator[list[draft_pb2.DraftCommand]]:
            while (command := await self.commands.get()) is not None:
                yield [command]

        async for events in run_stream(messages(), lambda message: message, host.thread):
            self.events += events


@pytest.fixture
def health() -> Health:
    return Health(("specdec.v1.DraftService",))


async def test_unavailable_while_the_model_loads(health: Health) -> None:
    host: Host = EngineHost("draft")
    with pytest.raises(UnavailableError, match="the draft service is still loading"):
        _ = host.thread
    assert host.num_sequences == 0
    await asyncio.wait_for(host.drain(), SECONDS)
    await asyncio.wait_for(host.close(), SECONDS)
    assert not health.is_serving


async def test_serves_from_the_start_and_its_thread_ends_with_it(health: Health) -> None:
    host: Host = EngineHost("draft")
    host.start(make_engine(), health)
    assert health.is_serving
    peer = Peer(host)
    await until(lambda: bool(peer.events))
    assert list(peer.events[0].proposal.token_ids) == [2, 1]
    assert host.num_sequences == 1
    peer.commands.put_nowait(None)
    await asyncio.wait_for(peer.task, SECONDS)
    await until(lambda: host.num_sequences == 0)
    await asyncio.wait_for(host.close(), SECONDS)
    assert "draft" not in {thread.name for thread in threading.enumerate()}


class Stuck(DraftEngine):
    """Does not come back from a step until it is let go."""

    def __init__(self) -> None:
        super().__init__(NgramDrafter(min_length=1, max_length=2, max_num_draft_tokens=4, max_num_sequences=4))
        self.go_on = threading.Event()

    def step(self) -> bool:
        assert self.go_on.wait(2 * SECONDS)
        return super().step()


async def liveness(health: Health) -> int:
    request = health_pb2.HealthCheckRequest(service=LIVENESS_NAME)
    return int((await health.Check(request, None)).status)


async def test_a_step_that_does_not_come_back_is_told(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    # B60: the process answers its probes all the same.
    monkeypatch.setattr(service, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(service, "_STUCK_SECONDS", 0.3)
    host: Host = EngineHost("draft")
    engine = Stuck()
    host.start(engine, health)
    assert health.is_serving
    await until(lambda: not health.is_serving)
    assert await liveness(health) == health_pb2.HealthCheckResponse.SERVING
    engine.go_on.set()
    await until(lambda: health.is_serving)
    engine.go_on.clear()
    monkeypatch.setattr(service, "_LOST_SECONDS", 0.5)
    await until(lambda: not health.is_serving)
    deadline = time.monotonic() + SECONDS
    while await liveness(health) == health_pb2.HealthCheckResponse.SERVING:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    engine.go_on.set()
    await asyncio.wait_for(host.close(), SECONDS)
    assert not health.is_serving


async def test_draining_waits_for_the_open_sequences_and_takes_no_further(health: Health) -> None:
    host: Host = EngineHost("draft")
    host.start(make_engine(), health)
    peer = Peer(host)
    await until(lambda: host.num_sequences == 1)
    draining = asyncio.create_task(host.drain())
    late = Peer(host)
    await until(lambda: bool(late.events))
    assert "shutting down" in late.events[0].failed.message
    assert not draining.done()
    peer.commands.put_nowait(None)
    await asyncio.wait_for(draining, SECONDS)
    late.commands.put_nowait(None)
    await asyncio.wait_for(asyncio.gather(peer.task, late.task), SECONDS)
    await host.close()


async def test_an_engine_that_dies_takes_the_service_out_of_use(
    health: Health, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine()
    host: Host = EngineHost("draft")
    host.start(engine, health)
    peer = Peer(host)
    await until(lambda: bool(peer.events))

    def fail() -> bool:
        raise RuntimeError("device lost")

    monkeypatch.setattr(engine, "step", fail)
    peer.commands.put_nowait(open_command())
    with pytest.raises(UnavailableError, match="has failed"):
        await asyncio.wait_for(peer.task, SECONDS)
    await until(lambda: not health.is_serving)
    with pytest.raises(UnavailableError, match="the draft service has failed and must be restarted"):
        _ = host.thread
    health.set_serving(True)
    assert not health.is_serving, "only a restart helps"
    assert "the engine failed" in caplog.text
    await asyncio.wait_for(host.close(), SECONDS)

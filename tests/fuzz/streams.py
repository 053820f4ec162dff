"""Hostile orchestrators: what they send on the streams of a target or a draft service."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc.aio

from specdec.engine.service import EngineHost
from specdec.serving.channel import open_channel
from specdec.serving.host import ServiceHost
from specdec.v1 import draft_pb2, target_pb2
from tests.exactness.whole_system import draft_service, hosted, orchestrator, same_model, target_service
from tests.fuzz.draft_talk import DraftTalk
from tests.fuzz.healthy import healthy
from tests.fuzz.random_messages import RandomMessages
from tests.fuzz.report import Found, Report
from tests.fuzz.target_talk import TargetTalk
from tests.orchestrator.serving import until

_BURSTS_A_STREAM = 80
_BURST_SIZES = (1, 5, 10, 10, 20, 20, 20, 40, 100)
_SECONDS = 30.0


class Talk(Protocol):
    """Makes the commands of one stream."""

    def commands(self, count: int) -> Sequence[Any]: ...

    def take(self, event: Any) -> None: ...

    def sentinel(self) -> Any: ...

    def forget(self) -> None: ...


@dataclass(frozen=True)
class Method:
    """A method with a stream of commands."""

    path: str
    request: Callable[..., Any]
    command: Callable[..., Any]
    response: Any
    talk: Callable[[random.Random], Talk]


VERIFY = Method(
    "/specdec.v1.TargetService/Verify",
    target_pb2.VerifyRequest,
    target_pb2.TargetCommand,
    target_pb2.VerifyResponse,
    TargetTalk,
)
PROPOSE = Method(
    "/specdec.v1.DraftService/Propose",
    draft_pb2.ProposeRequest,
    draft_pb2.DraftCommand,
    draft_pb2.ProposeResponse,
    DraftTalk,
)


class HostileStreams:
    """One stream after the other, each with bursts of commands and an end of some kind.

    Args:
        method: to call.
        address: of the service.
        rng: all randomness comes from it.
        report: counts what is sent, and looks at what comes back.
    """

    def __init__(self, method: Method, address: str, rng: random.Random, report: Report) -> None:
        self._method = method
        self._address = address
        self._rng = rng
        self._junk = RandomMessages(rng)
        self._report = report
        self._talk = method.talk(rng)

    async def send(self, num_messages: int) -> None:
        """Send so many commands."""
        async with open_channel(self._address, max_message_bytes=64 << 20) as channel:
            make_call: Any = channel.stream_stream(
                self._method.path, response_deserializer=self._method.response.FromString
            )
            end = self._report.num_messages + num_messages
            while self._report.num_messages < end:
                await asyncio.wait_for(self._stream(make_call(), end), _SECONDS)

    async def _stream(self, call: Any, end: int) -> None:
        self._talk.forget()
        for _ in range(_BURSTS_A_STREAM):
            count = min(self._rng.choice(_BURST_SIZES), end - self._report.num_messages)
            if count <= 0 or not await self._burst(call, count):
                break
        way = self._rng.randrange(3)
        if way == 0:
            call.cancel()
        elif way == 1:
            await self._write(call, self._junk.junk())
            self._report.num_messages += 1
            await self._write(call, b"\xff\xff\xff")
        if way:
            await self._done_writing(call)
            while (response := await self._read(call)) is not None:
                self._look_at(response)
        self._report.status(await call.code(), await call.details())

    async def _burst(self, call: Any, count: int) -> bool:
        """Some commands in one message, and answers until one comes for the last. False: the stream is over."""
        commands = list(self._talk.commands(count))
        self._report.num_messages += len(commands)
        sentinel = self._talk.sentinel()
        if not await self._write(call, self._method.request(commands=[*commands, sentinel]).SerializeToString()):
            return False
        is_answered = False
        while not is_answered:
            response = await self._read(call)
            if response is None:
                return False
            self._look_at(response)
            is_answered = any(event.sequence_id == sentinel.sequence_id for event in response.events)
        closing = self._method.command(sequence_id=sentinel.sequence_id)
        closing.close.SetInParent()
        return await self._write(call, self._method.request(commands=[closing]).SerializeToString())

    def _look_at(self, response: Any) -> None:
        for event in response.events:
            if event.HasField("failed"):
                self._report.status(event.failed.code, event.failed.message)
            else:
                self._report.answers[event.WhichOneof("event")] += 1
            self._talk.take(event)

    async def _read(self, call: Any) -> Any:
        """The next response; None: the stream is over, well or not."""
        try:
            response = await call.read()
        except grpc.aio.AioRpcError:
            return None
        return None if response is grpc.aio.EOF else response

    async def _write(self, call: Any, data: bytes) -> bool:
        try:
            await call.write(data)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError, asyncio.CancelledError):
            if not call.done():
                raise
            return False
        return True

    async def _done_writing(self, call: Any) -> None:
        try:
            await call.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            if not call.done():
                raise


async def fuzz_stream(name: str, method: Method, num_messages: int, seed: int) -> Report:
    """Real services with tiny models in this process, healthy requests to them, and hostile streams beside those.

    Args:
        name: for the report.
        method: to throw commands at.
        num_messages: commands.
        seed: of all randomness.

    Raises:
        Found: what no input may bring about.
    """
    report = Report(name, seed)
    rng = random.Random(seed)
    target, draft = target_service(), draft_service(same_model)
    async with hosted(target) as target_host, hosted(draft) as draft_host:
        attacked: ServiceHost = target_host if method is VERIFY else draft_host
        engine_host: EngineHost[Any, Any, Any] = (target if method is VERIFY else draft)._host
        async with (
            orchestrator(target_host.address, draft_host.address) as run,
            healthy(run, report),
        ):
            streams = HostileStreams(method, attacked.address, rng, report)
            await streams.send(num_messages)
        await until(lambda: engine_host.num_sequences == 0)
        if not attacked.health.is_serving:
            raise Found(f"{report}: the service has gone out of use")
    return report

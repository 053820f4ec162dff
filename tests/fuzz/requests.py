"""Hostile clients: what they send to the orchestrator, between fakes of the services."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc.aio

from specdec.serving.channel import open_channel
from specdec.v1 import generation_pb2, sampling_pb2
from tests.fuzz.healthy import healthy
from tests.fuzz.random_messages import RandomMessages
from tests.fuzz.report import Found, Report
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import running
from tests.orchestrator.serving import until
from tests.tiny_models import TINY_VOCAB_SIZE

_NUM_CLIENTS = 24
_CONTEXT = 32
"""Of the target. Short, since many requests ask for all that fits."""
_SECONDS = 20.0
_SERVICE = "/specdec.v1.GenerationService"
_MAX_NEW_TOKENS = (0, 1, 2, 5, 20)


class HostileClients:
    """Calls one after the other, several at a time.

    Args:
        address: of the orchestrator.
        rng: all randomness comes from it.
        report: counts what is sent, and looks at what comes back.
    """

    def __init__(self, address: str, rng: random.Random, report: Report) -> None:
        self._address = address
        self._rng = rng
        self._random = RandomMessages(rng)
        self._report = report

    async def send(self, num_messages: int) -> None:
        """Send so many requests."""
        async with open_channel(self._address, max_message_bytes=64 << 20) as channel:
            stream: Any = channel.unary_stream(
                f"{_SERVICE}/Generate", response_deserializer=generation_pb2.GenerateResponse.FromString
            )
            unary: Any = channel.unary_unary(
                f"{_SERVICE}/GenerateUnary", response_deserializer=generation_pb2.GenerateUnaryResponse.FromString
            )

            async def client() -> None:
                while self._report.num_messages < num_messages:
                    self._report.num_messages += 1
                    await self._call(stream, unary)

            clients = [asyncio.create_task(client()) for _ in range(_NUM_CLIENTS)]
            try:
                await asyncio.gather(*clients)
            finally:
                for task in clients:
                    task.cancel()

    async def _call(self, stream: Any, unary: Any) -> None:
        request: Any = self._request()
        is_unary = self._rng.random() < 0.5
        if is_unary and isinstance(request, generation_pb2.GenerateRequest):
            request = generation_pb2.GenerateUnaryRequest(request=request)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        num_wanted = self._rng.choice((None, None, None, 0, 1, 3))
        call = (unary if is_unary else stream)(data, timeout=_SECONDS)
        try:
            if is_unary:
                self._report.answers["unary"] += bool(await call)
            else:
                async for _ in call:
                    self._report.answers["response"] += 1
                    if num_wanted is not None:
                        num_wanted -= 1
                        if num_wanted <= 0:
                            call.cancel()
                            break
        except grpc.aio.AioRpcError:
            pass
        code = await call.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise Found(f"{self._report}: a request hangs")
        self._report.status(code, await call.details())

    def _request(self) -> generation_pb2.GenerateRequest | bytes:
        chance = self._rng.random()
        if chance < 0.05:
            return self._good()
        if chance < 0.5:
            return self._random.spoilt(self._good())
        if chance < 0.97:
            return self._random.message(generation_pb2.GenerateRequest)
        return self._random.junk()

    def _good(self) -> generation_pb2.GenerateRequest:
        request = generation_pb2.GenerateRequest(
            max_new_tokens=self._rng.choice(_MAX_NEW_TOKENS),
            num_draft_tokens=self._rng.choice((0, 2, 8)),
            sampling=sampling_pb2.SamplingParams(seed=1, temperature=0.8),
            stop_strings=self._rng.choice(((), ("ab", "abc"))),
        )
        kind = self._rng.randrange(3)
        if kind == 0:
            request.token_ids.ids.extend(
                self._rng.randrange(TINY_VOCAB_SIZE) for _ in range(self._rng.choice((1, 5, 40)))
            )
        elif kind == 1:
            request.text = self._rng.choice(("Hello", "a" * 100, "é日🔥"))
        else:
            request.chat.messages.add(role="user", content="Hello")
        if self._rng.random() < 0.1:
            request.num_completions = 3
        return request


async def fuzz_requests(num_messages: int, seed: int) -> Report:
    """The orchestrator between fakes, and hostile clients of it.

    Raises:
        Found: what no input may bring about.
    """
    report = Report("orchestrator", seed)
    target, draft = FakeTarget(max_context_length=_CONTEXT), FakeDraft()
    async with running(target, draft) as run:
        async with healthy(run, report):
            await HostileClients(run.host.address, random.Random(seed), report).send(num_messages)
        await until(lambda: not target.sequences and not draft.sequences)
        if any(max(command.open.token_ids, default=0) >= TINY_VOCAB_SIZE for command in target.commands):
            raise Found(f"{report}: the target was sent ids that it does not have")
        if target.refusals or draft.refusals:
            # Whatever clients send, the orchestrator keeps to the protocol.
            raise Found(f"{report}: a service refused: {[*target.refusals, *draft.refusals][:3]}")
    return report

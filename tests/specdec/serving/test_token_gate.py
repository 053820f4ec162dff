from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, cast

import grpc
import pytest

from specdec.endpoints import retry_seconds_of
from specdec.serving.channel import open_channel
from specdec.serving.channel_security import ChannelSecurity
from specdec.serving.server_security import ServerSecurity
from specdec.serving.token_file import TokenEntry, entry_for
from specdec.serving.token_gate import TokenGate
from specdec.serving.token_limits import Limits, Rate
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.orchestrator.serving import until
from tests.specdec.serving.secured import OTHER_SECRET, SECRET, attempt, is_healthy, refusal, secured, until_true
from tests.specdec.serving.toy_process import rest_of
from tests.specdec.serving.toy_service import MAX_MESSAGE_BYTES, ToyService

pytestmark = pytest.mark.timeout(60)

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
HOLDER = ChannelSecurity(secret=lambda: SECRET)


@dataclass
class TextLength:
    """Characters of the toy's answers stand for tokens."""

    expected_tokens: int
    used_tokens: int = 0
    is_abandoned: bool = False

    def notice(self, response: Any) -> None:
        is_delta = isinstance(response, generation_pb2.GenerateResponse)
        self.used_tokens += len(response.delta.text if is_delta else response.completions[0].text)

    def abandon(self) -> None:
        self.is_abandoned = True


class Behind:
    """A gate, the entries of its file, and the usages it has made."""

    def __init__(self, *entries: TokenEntry, expected_tokens: int = 1) -> None:
        self.entries = entries
        self.usages: list[TextLength] = []
        self.expected_tokens = expected_tokens
        self.security = ServerSecurity(gates=[TokenGate(lambda: self.entries, self._meter)])

    def _meter(self, request: object) -> TextLength:
        self.usages.append(TextLength(self.expected_tokens))
        return self.usages[-1]


def token(secret: str = SECRET, name: str = "alice", **limits: Any) -> TokenEntry:
    return entry_for(secret, name, Limits(**limits))


async def call_unary(channel: grpc.aio.Channel, text: str = "abc") -> None:
    request = generation_pb2.GenerateUnaryRequest(request=generation_pb2.GenerateRequest(text=text))
    await generation_pb2_grpc.GenerationServiceStub(channel).GenerateUnary(request, timeout=5)


def open_to(address: str, security: ChannelSecurity = HOLDER) -> grpc.aio.Channel:
    return open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES, security=security)


async def is_admitted(channel: grpc.aio.Channel) -> bool:
    """Whether a call is let in; it is full otherwise."""
    try:
        await call_unary(channel)
    except grpc.aio.AioRpcError as error:
        if error.code() is not RESOURCE_EXHAUSTED:
            raise
        return False
    return True


async def exhausted(channel: grpc.aio.Channel) -> float | None:
    """The delay that a refused call is told."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call_unary(channel)
    assert refused.value.code() is RESOURCE_EXHAUSTED
    assert SECRET not in str(refused.value)
    return retry_seconds_of(refused.value)


async def test_a_token_is_needed_for_all_but_health(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with secured(Behind(token()).security) as host:
        assert await attempt(host.address, HOLDER) is None
        assert await is_healthy(host.address)
        assert await refusal(host.address) is UNAUTHENTICATED
        assert await refusal(host.address, ChannelSecurity(secret=lambda: OTHER_SECRET)) is UNAUTHENTICATED
    assert SECRET not in caplog.text
    assert OTHER_SECRET not in caplog.text


async def test_missing_and_wrong_are_refused_in_the_same_words() -> None:
    async with secured(Behind(token()).security) as host:
        missing = await attempt(host.address)
        wrong = await attempt(host.address, ChannelSecurity(secret=lambda: OTHER_SECRET))
    assert missing is not None
    assert wrong is not None
    assert missing.details() == wrong.details()


async def test_an_empty_file_serves_nobody() -> None:
    async with secured(Behind().security) as host:
        assert await refusal(host.address, HOLDER) is UNAUTHENTICATED


async def test_a_call_without_a_token_is_refused_before_its_message_has_come() -> None:
    async with secured(Behind(token()).security) as host, grpc.aio.insecure_channel(host.address) as channel:
        call: Any = channel.stream_unary("/specdec.v1.GenerationService/GenerateUnary")(timeout=20)
        assert await asyncio.wait_for(call.code(), 5) is UNAUTHENTICATED


async def test_a_token_that_is_taken_away_is_refused_and_what_runs_goes_on() -> None:
    behind = Behind(token(), token(OTHER_SECRET, "bob"))
    async with secured(behind.security) as host, open_to(host.address) as channel:
        stream = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
            generation_pb2.GenerateRequest(max_new_tokens=20)
        )
        await stream.read()
        behind.entries = behind.entries[1:]
        assert await refusal(host.address, HOLDER) is UNAUTHENTICATED
        assert await attempt(host.address, ChannelSecurity(secret=lambda: OTHER_SECRET)) is None
        assert len(await rest_of(stream)) == 20


async def test_a_rate_is_told_when_to_come_back_and_is_of_one_token_only() -> None:
    behind = Behind(token(requests=Rate(2, "m")), token(OTHER_SECRET, "bob"))
    async with secured(behind.security) as host, open_to(host.address) as channel:
        await call_unary(channel)
        await call_unary(channel)
        retry_seconds = await exhausted(channel)
        assert retry_seconds is not None
        assert 20 < retry_seconds <= 30
        assert await attempt(host.address, ChannelSecurity(secret=lambda: OTHER_SECRET)) is None
        behind.entries = (token(),)
        await call_unary(channel)


async def test_concurrent_requests_are_bounded_and_their_places_come_back() -> None:
    async with (
        secured(Behind(token(concurrent=2)).security, ToyService(pause_seconds=0.01)) as host,
        open_to(host.address) as channel,
    ):
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        streams = [stub.Generate(generation_pb2.GenerateRequest(max_new_tokens=10_000)) for _ in range(2)]
        for stream in streams:
            await stream.read()
        assert await exhausted(channel) is not None
        streams[0].cancel()
        await until_true(lambda: is_admitted(channel))
        streams[1].cancel()


async def test_tokens_are_reserved_settled_by_the_responses_and_refused_beyond() -> None:
    behind = Behind(token(tokens=Rate(100, "m")), expected_tokens=60)
    async with secured(behind.security) as host, open_to(host.address) as channel:
        await call_unary(channel, "x" * 30)
        await call_unary(channel, "x" * 30)
        # 40 are left, which are not the 60 that a request may take.
        retry_seconds = await exhausted(channel)
        assert retry_seconds is not None
        assert 10 < retry_seconds <= 12
        behind.expected_tokens = 40
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        await rest_of(stub.Generate(generation_pb2.GenerateRequest(max_new_tokens=3)))
        assert behind.usages[-1].used_tokens == 3
        behind.expected_tokens = 101
        assert await exhausted(channel) is None


async def test_a_call_that_is_cancelled_is_abandoned_and_one_that_fails_is_not() -> None:
    behind = Behind(token())
    async with secured(behind.security) as host, open_to(host.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        stream = stub.Generate(generation_pb2.GenerateRequest(max_new_tokens=1000))
        await stream.read()
        stream.cancel()
        await until(lambda: behind.usages[0].is_abandoned)
        for text, code in (("refuse", grpc.StatusCode.INVALID_ARGUMENT), ("bug", grpc.StatusCode.INTERNAL)):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call_unary(channel, text)
            assert failed.value.code() is code
            assert (behind.usages[-1].used_tokens, behind.usages[-1].is_abandoned) == (0, False)


async def test_what_is_known_of_tokens_that_are_gone_is_forgotten() -> None:
    entries: list[TokenEntry] = []
    gate = TokenGate(lambda: entries, lambda request: TextLength(1))
    for number in range(50):
        entries[:] = [token(f"{SECRET}{number}", f"name{number}")]
        caller = gate.identify([("authorization", f"Bearer {SECRET}{number}")])
        with gate.admission(caller)(None, cast("Any", None)):
            pass
    assert len(gate._quotas) == 1

"""Hostile services: targets and draft services that answer nonsense to the orchestrator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc.aio
import pytest

from orchestrator.links import link
from specdec.v1 import target_pb2
from tests.fuzz.random_messages import RandomMessages
from tests.fuzz.report import Found, Report
from tests.orchestrator.fakes import Context, FakeDraft, FakeTarget
from tests.orchestrator.running import Running, request, running
from tests.orchestrator.serving import until
from tests.orchestrator.table import plain_continuation
from tests.tiny_models import TINY_VOCAB_SIZE

_NUM_CLIENTS = 8
_SECONDS = 30.0
_NUM_TOKENS = 16
_LIE_SHARE = 0.3
_SPOILT_BATCH_SHARE = 0.04
"""Less than of other lies: each ends the stream of all requests."""
_CODES = (3, 8, 9, 11, 13, 14, 15, 16, 99, -1)

Lies = Callable[[Any, Any], Iterable[Any]]


class Liar:
    """Changes the answers of a fake, some of them.

    Args:
        rng: all randomness comes from it.
        report: counts what is sent in the end.
    """

    def __init__(self, rng: random.Random, report: Report) -> None:
        self._rng = rng
        self._random = RandomMessages(rng)
        self._report = report

    def __call__(self, _command: Any, event: Any) -> list[Any]:
        """What is sent for an answer."""
        events = [event] if self._rng.random() >= _LIE_SHARE else self._lie(event)
        self._report.num_messages += len(events)
        return events

    def _lie(self, event: Any) -> list[Any]:
        way = self._rng.choice((0, 0, 0, 0, 0, 3, 4, 5, 6, 7))
        if way == 0:
            return [self._random.spoilt(event)]
        if way == 3:
            return [self._random.spoilt(event), event, event]
        if way == 4:
            return [self._random.message(type(event)), event]
        if way == 5:
            other = self._random.message(type(event))
            other.sequence_id, other.epoch, other.round = event.sequence_id, event.epoch, event.round
            return [other]
        if way == 6:
            failed = type(event)(sequence_id=event.sequence_id, epoch=event.epoch, round=event.round)
            failed.failed.code, failed.failed.message = (
                self._rng.choice(_CODES),
                "x" * self._rng.choice((0, 10, 100_000)),
            )
            return [failed]
        return [event, *(self._random.spoilt(event) for _ in range(5))]


class LyingTarget(FakeTarget):
    """Spoils verdicts in columns besides, as a whole.

    Args:
        rng: all randomness comes from it.
        report: counts what is sent in the end.
    """

    def __init__(self, rng: random.Random, report: Report) -> None:
        super().__init__()
        self.change = Liar(rng, report)
        self._rng = rng
        self._random = RandomMessages(rng)
        self._report = report

    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[target_pb2.VerifyRequest], context: Context
    ) -> AsyncIterator[target_pb2.VerifyResponse]:
        """Now and then columns do not match, or are any; sometimes there are some that nobody has asked for."""
        async for response in super().Verify(request_iterator, context):
            for event in list(response.events):
                if event.HasField("verdicts") and self._rng.random() < _SPOILT_BATCH_SHARE:
                    spoilt = self._random.spoilt(event.verdicts)
                    if self._rng.random() < 0.3:
                        response.events.add(verdicts=self._random.message(target_pb2.VerdictBatch))
                    event.verdicts.CopyFrom(spoilt)
                    self._report.answers["spoilt verdicts"] += 1
            yield response


async def fuzz_by_draft(num_messages: int, seed: int) -> Report:
    """A draft service that lies beside a good target: every request has its own text all the same.

    Raises:
        Found: what no draft service may bring about.
    """
    report = Report("hostile draft service", seed)
    draft = FakeDraft()
    draft.change = Liar(random.Random(seed), report)
    async with running(FakeTarget(), draft, draft_timeout_seconds=0.2) as run:
        await _ask_until(run, report, num_messages, seed, is_text_certain=True)
    return report


async def fuzz_by_target(num_messages: int, seed: int) -> Report:
    """A target that lies. Some of its lies nobody can tell from a token: so requests end well or with a clear status.

    Raises:
        Found: what no target may bring about.
    """
    report = Report("hostile target", seed)
    target = LyingTarget(random.Random(seed), report)
    with pytest.MonkeyPatch.context() as patch:
        # It would take most of the time to wait for the next stream.
        patch.setattr(link, "_FIRST_RETRY_SECONDS", 0.01)
        patch.setattr(link, "_LAST_RETRY_SECONDS", 0.02)
        async with running(target, FakeDraft(), round_timeout_seconds=1.0) as run:
            await _ask_until(run, report, num_messages, seed, is_text_certain=False)
    return report


async def _ask_until(run: Running, report: Report, num_messages: int, seed: int, *, is_text_certain: bool) -> None:
    rng = random.Random(seed)

    async def client() -> None:
        while report.num_messages < num_messages:
            await until(lambda: run.service.targets.is_available)
            prompt = [rng.randrange(2, TINY_VOCAB_SIZE) for _ in range(3)]
            await _ask(run, report, prompt, is_text_certain)

    clients = [asyncio.create_task(client()) for _ in range(_NUM_CLIENTS)]
    try:
        await asyncio.gather(*clients)
    finally:
        for task in clients:
            task.cancel()


async def _ask(run: Running, report: Report, prompt: list[int], is_text_certain: bool) -> None:
    tokens: list[int] = []
    call = run.stub.Generate(request(prompt, _NUM_TOKENS), timeout=_SECONDS)
    try:
        async for response in call:
            tokens += response.delta.token_ids
    except grpc.aio.AioRpcError:
        pass
    code, expected = await call.code(), plain_continuation(prompt, _NUM_TOKENS)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise Found(f"{report}: a request hangs")
    report.status(code, await call.details())
    if len(tokens) > _NUM_TOKENS or any(token >= TINY_VOCAB_SIZE for token in tokens):
        raise Found(f"{report}: more tokens than were asked for, or none of the vocabulary")
    if is_text_certain and (code is not grpc.StatusCode.OK or tokens != expected):
        raise Found(f"{report}: other tokens than the target's")
    report.num_healthy += tokens == expected

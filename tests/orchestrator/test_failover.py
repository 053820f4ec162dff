"""Requests go on where a replica is lost, leaves, is full or says nothing; the text is what it would have been."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest

from orchestrator.replicas import addresses
from specdec.errors import ResourceExhaustedError, UnavailableError
from specdec.serving.health import Health
from specdec.telemetry import names
from specdec.v1 import target_pb2
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import PROMPT, Running, request, running
from tests.orchestrator.serving import serving, until
from tests.orchestrator.table import plain_continuation, table_token
from tests.recorded_spans import recorded_spans

LONG = request(max_new_tokens=200)
EXPECTED = plain_continuation(PROMPT, 200)


def slow_targets(count: int = 2, **facts: Any) -> list[FakeTarget]:
    """Rounds take a few milliseconds, so that there is a middle to fail in."""
    targets = [FakeTarget(**facts) for _ in range(count)]
    for target in targets:
        target.delay_seconds = 0.005
    return targets


class System:
    """An orchestrator between replicas, each of which can be cut off."""

    def __init__(self, life: AsyncExitStack) -> None:
        self._life = life
        self._lives: dict[object, AsyncExitStack] = {}
        self.run: Running

    async def serve(self, fake: FakeTarget | FakeDraft, port: int = 0) -> str:
        life = AsyncExitStack()
        self._lives[fake] = life
        self._life.push_async_callback(life.aclose)
        return f"127.0.0.1:{await life.enter_async_context(serving(fake, port))}"

    async def kill(self, fake: FakeTarget | FakeDraft) -> None:
        await self._lives[fake].aclose()

    async def start(self, targets: Iterable[FakeTarget], drafts: Iterable[FakeDraft] = (), **settings: Any) -> Running:
        target = ",".join([await self.serve(fake) for fake in targets])
        draft = ",".join([await self.serve(fake) for fake in drafts])
        self.run = await self._life.enter_async_context(running(target, draft, **settings))
        links = [*self.run.service.targets.links, *(self.run.service.drafts.links if self.run.service.drafts else ())]
        await until(lambda: all(link.is_available for link in links))
        return self.run


def busy_one(*fakes: Any) -> Any:
    """The replica that has a sequence."""
    (busy,) = (fake for fake in fakes if fake.sequences)
    return busy


def failovers(run: Running) -> dict[str, int]:
    return {str(link): int(count) for link, count in run.counting.by_attribute(names.FAILOVERS).items()}


async def in_the_middle(*fakes: Any, commands: int = 8) -> Any:
    """Wait until a replica is well into a request; gives it."""
    await until(lambda: any(len(fake.commands) >= commands and fake.sequences for fake in fakes))
    return busy_one(*fakes)


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
async def test_a_target_that_dies_costs_nothing_but_time(num_draft_tokens: int, short_pauses: None) -> None:
    targets, draft = slow_targets(), FakeDraft(table_token)
    async with AsyncExitStack() as life:
        system = System(life)
        run = await system.start(targets, [draft])
        asked = request(max_new_tokens=200, num_draft_tokens=num_draft_tokens)
        with recorded_spans() as spans:
            generating = asyncio.create_task(run.generate(asked))
            await system.kill(await in_the_middle(*targets))
            result = await generating
            events = [
                event.name for span in spans.get_finished_spans() if span.name == "verify" for event in span.events
            ]
        assert events == [names.FAILOVER_EVENT]
        assert result.token_ids == EXPECTED
        assert failovers(run) == {"target": 1}
        # Not the whole is repeated: the other one was given what was committed.
        opens = [command.open for fake in targets for command in fake.commands if command.HasField("open")]
        assert sorted(opening.epoch for opening in opens) == [1, 2]
        assert len(opens[-1].token_ids) != len(opens[0].token_ids)
        assert not [refusal for fake in targets for refusal in fake.refusals]


async def test_a_draft_that_dies_costs_at_most_a_few_rounds(short_pauses: None) -> None:
    targets, drafts = slow_targets(1), [FakeDraft(table_token), FakeDraft(table_token)]
    async with AsyncExitStack() as life:
        system = System(life)
        run = await system.start(targets, drafts)
        generating = asyncio.create_task(run.generate(LONG))
        await system.kill(await in_the_middle(*drafts))
        result = await generating
        assert result.token_ids == EXPECTED
        assert failovers(run) == {"draft": 1}
        without = [report for report in result.rounds[1:] if not report.num_draft_tokens]
        assert len(without) <= 2


async def test_a_replica_that_shuts_down_is_left_before_it_is_gone(short_pauses: None) -> None:
    targets = slow_targets()
    async with AsyncExitStack() as life:
        system = System(life)
        healths = {target: Health(()) for target in targets}
        for target, health in healths.items():
            health.set_serving(True)
            target.health = health
        run = await system.start(targets)
        generating = asyncio.create_task(run.generate(LONG))
        busy = await in_the_middle(*targets)
        healths[busy].set_serving(False)
        await until(lambda: not busy.sequences)
        other = next(target for target in targets if target is not busy)
        assert (await generating).token_ids == EXPECTED
        assert failovers(run) == {"target": 1}
        # And it gets nothing new, until it is well again.
        seen = len(busy.commands)
        assert (await run.generate()).token_ids == plain_continuation(PROMPT, 24)
        assert len(busy.commands) == seen
        healths[busy].set_serving(True)
        healths[other].set_serving(False)
        await until(lambda: len(run.service.targets.accepting()) == 1)
        assert (await run.generate()).token_ids == plain_continuation(PROMPT, 24)
        assert len(busy.commands) > seen


async def test_a_target_that_says_nothing_any_more_is_left() -> None:
    """Its connection is well: only the model does not come back."""
    targets = slow_targets()
    async with AsyncExitStack() as life:
        run = await System(life).start(targets, silence_seconds=1.25)
        generating = asyncio.create_task(run.generate(LONG))
        busy = await in_the_middle(*targets, commands=20)
        loop = asyncio.get_running_loop()
        busy.is_frozen, frozen_at = True, loop.time()
        other = next(target for target in targets if target is not busy)
        await until(lambda: bool(other.commands))
        assert loop.time() - frozen_at < 2.0
        assert (await generating).token_ids == EXPECTED
        # It is not trusted again at once.
        busy.is_frozen = False
        seen = len(busy.commands)
        assert (await run.generate()).token_ids == plain_continuation(PROMPT, 24)
        assert len(busy.commands) == seen


async def test_a_slow_target_that_answers_others_is_not_left() -> None:
    """Only this sequence has to wait there, which is overload and no failure."""
    targets = slow_targets()
    # So the others come to the same one.
    targets[1].load.num_sequences = 50
    held: list[target_pb2.TargetEvent] = []
    async with AsyncExitStack() as life:
        run = await System(life).start(targets, silence_seconds=1.25)
        first = asyncio.create_task(run.generate(LONG))
        busy = await in_the_middle(*targets, commands=20)
        (mine,) = busy.sequences

        def hold(command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
            if command.sequence_id == mine and not held:
                held.append(event)
                return []
            return [event]

        busy.change = hold
        await until(lambda: bool(held))
        busy.change = lambda _, event: [event] if event.sequence_id != mine else []
        others = 0
        deadline = asyncio.get_running_loop().time() + 1.6
        while asyncio.get_running_loop().time() < deadline:
            await run.generate()
            others += 1
        assert others > 4
        assert failovers(run) == {}
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize("refusal", [ResourceExhaustedError("full", 5.0), UnavailableError("going away")])
async def test_a_replica_that_refuses_is_passed_over(refusal: Any, short_pauses: None) -> None:
    full, free = slow_targets()

    def refuse(command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> Iterable[target_pb2.TargetEvent]:
        event.failed.CopyFrom(refusal.to_status())
        return [event]

    full.change = refuse
    async with AsyncExitStack() as life:
        run = await System(life).start([full, free])
        for _ in range(3):
            assert (await run.generate()).token_ids == plain_continuation(PROMPT, 24)
        assert full.commands
        # It was never there, so nothing was lost.
        assert failovers(run) == {}
        assert run.counting.by_attribute(names.RESYNCS) == {}
        free.change = refuse
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await run.generate()
        assert failure.value.code() is refusal.code


async def test_sequences_are_spread_over_replicas() -> None:
    targets, drafts = slow_targets(3), [FakeDraft(table_token) for _ in range(2)]
    async with AsyncExitStack() as life:
        run = await System(life).start(targets, drafts)
        asked = [request([40, 41, number], max_new_tokens=60) for number in range(12)]
        await asyncio.gather(*(run.generate(each) for each in asked))
        opens = [sum(command.HasField("open") for command in fake.commands) for fake in targets]
        assert opens == [4, 4, 4]
        assert all(len(draft.commands) > 10 for draft in drafts)


async def test_what_others_do_to_a_replica_counts() -> None:
    loaded, idle = slow_targets()
    loaded.load.num_sequences = 7
    async with AsyncExitStack() as life:
        run = await System(life).start([loaded, idle])
        await until(lambda: max(link.load.num_sequences for link in run.service.targets.links) == 7)
        for number in range(4):
            await run.generate(request([40, 41, number]))
        assert not loaded.commands


async def test_another_model_behind_one_of_the_addresses_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    (target,), (other,) = slow_targets(1, weights_fingerprint="aa"), slow_targets(1, weights_fingerprint="bb")
    async with AsyncExitStack() as life:
        system = System(life)
        with caplog.at_level(logging.ERROR):
            run = await system.start([target])
            address = await system.serve(other)
            await run.service.targets._update([*(link.address for link in run.service.targets.links), address])
            await until(lambda: "is left out" in caplog.text)
        assert "weights fingerprint 'bb' against 'aa'" in caplog.text
        for _ in range(3):
            await run.generate()
        assert not other.commands
        # When none of the first model is left, it was replaced.
        seen = len(target.commands)
        generating = asyncio.create_task(run.generate(LONG))
        await in_the_middle(target, commands=seen + 8)
        await system.kill(target)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generating
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "another model" in str(failure.value.details())
        assert (await run.generate()).token_ids == plain_continuation(PROMPT, 24)
        assert other.commands


async def test_replicas_are_followed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = slow_targets()
    async with AsyncExitStack() as life:
        system = System(life)
        places = [await system.serve(first), await system.serve(second)]
        listed = places[:1]

        async def resolve(_: object) -> list[str]:
            return listed

        monkeypatch.setattr(addresses.Resolver, "resolve", resolve)
        run = await life.enter_async_context(running("dns:///targets:1", resolve_seconds=0.02))
        generating = asyncio.create_task(run.generate(LONG))
        await in_the_middle(first)
        listed = places[1:]
        # The one that is gone from the list is left, and closed once it has nothing.
        await until(lambda: not first.sequences and bool(second.sequences))
        assert (await generating).token_ids == EXPECTED
        await until(lambda: [link.address for link in run.service.targets.links] == places[1:])


async def test_when_no_target_is_left_the_request_ends_in_time_with_what_there_is(short_pauses: None) -> None:
    targets = slow_targets()
    async with AsyncExitStack() as life:
        system = System(life)
        run = await system.start(targets, round_timeout_seconds=0.5)
        received: list[int] = []

        async def read() -> None:
            async for response in run.stub.Generate(LONG, timeout=30):
                received.extend(response.delta.token_ids)

        reading = asyncio.create_task(read())
        await in_the_middle(*targets)
        for target in targets:
            await system.kill(target)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await asyncio.wait_for(reading, 5)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert received
        assert received == EXPECTED[: len(received)]


async def test_a_draft_that_says_nothing_any_more_is_not_waited_for_long(short_pauses: None) -> None:
    """By what it took so far, and not until the longest wait that is allowed."""
    targets, drafts = slow_targets(1), [FakeDraft(table_token), FakeDraft(table_token)]
    async with AsyncExitStack() as life:
        run = await System(life).start(targets, drafts, silence_seconds=1.25, draft_timeout_seconds=20.0)
        generating = asyncio.create_task(run.generate(LONG))
        busy = await in_the_middle(*drafts, commands=12)
        busy.is_frozen = True
        result = await generating
        assert result.token_ids == EXPECTED
        assert failovers(run) == {"draft": 1}
        longest = max(report.wall_microseconds for report in result.rounds) / 1e6
        assert 0.9 < longest < 2.0

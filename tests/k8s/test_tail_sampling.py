"""The tail rule of the collector, applied to what a running orchestrator emits: slow and troubled requests are kept.

No collector with this processor can be installed from where the checks are run, so `tail_sampling.py` stands in for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from specdec.telemetry import names, tracing
from specdec.v1 import draft_pb2, target_pb2
from tests.k8s.tail_sampling import wanted_by
from tests.k8s.test_monitoring import COLLECTOR
from tests.orchestrator.conftest import short_pauses
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import Running, request, running
from tests.orchestrator.serving import serving, until
from tests.orchestrator.table import table_token
from tests.recorded_spans import recorded_spans

__all__ = ["short_pauses"]

POLICIES: list[dict[str, Any]] = COLLECTOR["processors"]["tail_sampling"]["policies"]
SLOW_ROUND_SECONDS = 1.1


async def policies_for(run: Running, policies: list[dict[str, Any]] = POLICIES) -> set[str]:
    """Which of them keep the trace of a request that is made now, whether it fails or not."""
    with recorded_spans() as spans:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await run.generate(request(max_new_tokens=40))
        await until(lambda: any(span.name == "generate" for span in spans.get_finished_spans()))
        return wanted_by(policies, spans.get_finished_spans())


async def test_an_ordinary_request_is_left_to_the_lot() -> None:
    async with running(FakeTarget(), FakeDraft(table_token)) as run:
        assert await policies_for(run) == set()


async def test_one_slow_round_keeps_the_request() -> None:
    target = FakeTarget()
    async with running(target, FakeDraft(table_token)) as run:
        asking = asyncio.create_task(policies_for(run))
        await until(lambda: len(target.commands) > 2)
        target.delay_seconds = SLOW_ROUND_SECONDS
        before = len(target.commands)
        await until(lambda: len(target.commands) > before + 1)
        target.delay_seconds = 0.0
        assert await asking == {"slow-rounds"}


async def test_a_slow_request_is_kept_though_no_round_is() -> None:
    policies = copy.deepcopy(POLICIES)
    (slow,) = (policy for policy in policies if policy["name"] == "slow-requests")
    # Nobody waits ten seconds here.
    assert slow["latency"]["threshold_ms"] == 10_000
    slow["latency"]["threshold_ms"] = 150
    target = FakeTarget()
    target.delay_seconds = 0.02
    async with running(target, FakeDraft()) as run:
        assert await policies_for(run, policies) == {"slow-requests"}


async def test_rounds_without_the_drafts_that_were_wanted_keep_it(short_pauses: None) -> None:
    draft = FakeDraft(table_token)

    def hang_up(command: draft_pb2.DraftCommand, event: draft_pb2.DraftEvent) -> list[draft_pb2.DraftEvent]:
        draft.break_streams()
        return []

    draft.change = hang_up
    async with running(FakeTarget(), draft) as run:
        assert await policies_for(run) == {"rounds-without-their-drafts"}


async def test_a_sequence_that_moved_keeps_it(short_pauses: None) -> None:
    targets = [FakeTarget(), FakeTarget()]
    async with AsyncExitStack() as life:
        addresses = [f"127.0.0.1:{await life.enter_async_context(serving(target))}" for target in targets]
        run = await life.enter_async_context(running(",".join(addresses), FakeDraft(table_token)))
        for target in targets:
            target.delay_seconds = 0.01
        asking = asyncio.create_task(policies_for(run))
        await until(lambda: any(len(target.commands) > 3 for target in targets))
        (busy,) = (target for target in targets if target.sequences)
        busy.break_streams()
        assert "moved-sequences" in await asking


async def test_a_request_that_fails_is_kept() -> None:
    target = FakeTarget()

    def fail(command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> list[target_pb2.TargetEvent]:
        event.failed.code = grpc.StatusCode.DATA_LOSS.value[0]
        event.failed.message = "no numbers"
        return [event]

    target.change = fail
    async with running(target, FakeDraft(table_token)) as run:
        assert "failed" in await policies_for(run)


@pytest.mark.parametrize(
    "policy",
    [
        {"name": "x", "type": "string_attribute", "string_attribute": {}},
        {"name": "x", "type": "ottl_condition", "ottl_condition": {"span": ['kind == "server"']}},
    ],
)
def test_what_the_stand_in_does_not_know_is_no_pass(policy: dict[str, Any]) -> None:
    with recorded_spans() as spans:
        tracing.start_span(names.GENERATE).end()
    with pytest.raises(ValueError, match=r"of type|not known"):
        wanted_by([policy], spans.get_finished_spans())

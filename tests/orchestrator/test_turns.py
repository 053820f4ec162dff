"""Who goes first on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from specdec.v1 import generation_pb2
from tests.orchestrator.fakes import FakeTarget
from tests.orchestrator.running import request, running


class InProcess:
    """What the service asks of the context of a call."""

    def time_remaining(self) -> None:
        """There is no deadline."""

    def invocation_metadata(self) -> tuple[()]:
        return ()


async def test_what_else_is_ready_runs_before_a_client_is_told() -> None:
    async with running(FakeTarget()) as run:
        others: list[str] = []
        responses = run.service.Generate(request(), cast("Any", InProcess()))
        async with aclosing(cast("AsyncGenerator[generation_pb2.GenerateResponse, None]", responses)):
            asyncio.get_running_loop().call_soon(others.append, "ran")
            # Nothing is waited for before this one.
            assert (await anext(responses)).HasField("started")
            assert others == ["ran"]

"""All campaigns by name."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.fuzz.report import Report
from tests.fuzz.streams import PROPOSE, VERIFY, fuzz_stream

Campaign = Callable[[int, int], Coroutine[Any, Any, Report]]
"""Takes the number of messages and the seed."""


async def _target(num_messages: int, seed: int) -> Report:
    return await fuzz_stream("target", VERIFY, num_messages, seed)


async def _draft(num_messages: int, seed: int) -> Report:
    return await fuzz_stream("draft", PROPOSE, num_messages, seed)


CAMPAIGNS: dict[str, Campaign] = {"target": _target, "draft": _draft}

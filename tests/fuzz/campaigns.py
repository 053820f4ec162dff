"""All campaigns by name."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from tests.fuzz.report import Report
from tests.fuzz.requests import fuzz_requests
from tests.fuzz.services import fuzz_by_draft, fuzz_by_target
from tests.fuzz.streams import PROPOSE, VERIFY, fuzz_stream

Campaign = Callable[[int, int], Coroutine[Any, Any, Report]]
"""Takes the number of messages and the seed."""

CAMPAIGNS: dict[str, Campaign] = {
    "target": partial(fuzz_stream, "target", VERIFY),
    "draft": partial(fuzz_stream, "draft", PROPOSE),
    "orchestrator": fuzz_requests,
    "hostile-target": fuzz_by_target,
    "hostile-draft": fuzz_by_draft,
}
_MESSAGES_OF_A_LIE = 16
"""What a service answers with costs so many times as much as what it is sent, since each lie is met by a request."""


def num_messages_of(name: str, num_messages: int) -> int:
    """Messages of a campaign, of so many for those that only send."""
    return num_messages // _MESSAGES_OF_A_LIE if name.startswith("hostile") else num_messages

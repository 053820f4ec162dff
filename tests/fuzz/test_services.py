"""Hostile streams: no crash, no INTERNAL, and a healthy request beside them has its own text each time.

The same as `python -m tests.fuzz` with fewer messages; SPECDEC_FUZZ_MESSAGES and SPECDEC_FUZZ_SEED say others.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz.campaigns import CAMPAIGNS, num_messages_of
from tests.fuzz.cancels import cancel_at_random

NUM_MESSAGES = int(os.environ.get("SPECDEC_FUZZ_MESSAGES", "20000"))
IN_COLUMNS = {"target": "verdicts", "hostile-target": "spoilt verdicts"}
"""What a campaign must have met, for those that tell windows and verdicts in columns."""
SEED = int(os.environ.get("SPECDEC_FUZZ_SEED", "1"))


@pytest.mark.parametrize("name", CAMPAIGNS)
async def test_nothing_that_is_sent_harms_anyone(name: str) -> None:
    num_messages = num_messages_of(name, NUM_MESSAGES)
    report = await CAMPAIGNS[name](num_messages, SEED)
    print(report)
    assert report.num_messages >= num_messages
    assert report.num_healthy >= 2
    assert name not in IN_COLUMNS or report.answers[IN_COLUMNS[name]] > 0


async def test_nothing_is_left_of_requests_that_were_cancelled() -> None:
    print(await cancel_at_random(300, SEED))


@pytest.mark.slow
async def test_nothing_is_left_of_many_requests_that_were_cancelled() -> None:
    print(await cancel_at_random(2000, SEED))

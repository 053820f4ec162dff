"""`specdec top` of the three real services."""

from __future__ import annotations

import re

from specdec.client import GenerationClient
from specdec.top.endpoint import Endpoint
from specdec.top.watch import watch
from tests.end_to_end.conftest import Deployment
from tests.end_to_end.prompts import PROMPTS
from tests.end_to_end.requests import chat_request

SERVICES = ("target", "draft-combined", "orchestrator-combined")


def endpoint(deployment: Deployment, service: str) -> Endpoint:
    lines = deployment.group[service].lines
    (address,) = (found.group(1) for line in lines if (found := re.search(r"serving metrics on ([\d.:]+)", line)))
    return Endpoint.parse(address)


async def test_each_service_is_known_and_what_it_does_is_shown(deployment: Deployment) -> None:
    watched = watch([endpoint(deployment, service) for service in SERVICES], 0.1)
    await anext(watched)
    async with GenerationClient(deployment.combined) as client:
        answer = await client.collect(chat_request(PROMPTS[5], num_draft_tokens=3, max_new_tokens=24))
    target, draft, orchestrator = await anext(watched)
    await watched.aclose()
    assert [each.service for each in (target, draft, orchestrator)] == ["target", "draft", "orchestrator"]
    assert answer.finished is not None
    stats = answer.finished.stats
    assert orchestrator.acceptance_rate is not None
    assert abs(orchestrator.acceptance_rate - stats.acceptance_rate) < 1e-9
    assert orchestrator.mean_acceptance_length is not None
    assert abs(orchestrator.mean_acceptance_length - stats.mean_acceptance_length) < 1e-9
    assert (orchestrator.targets_available, orchestrator.drafts_available) == (1, 1)
    assert orchestrator.interval_seconds is not None
    # The last round may be trimmed.
    num_tokens = (orchestrator.tokens_per_second or 0) * orchestrator.interval_seconds
    assert 24 <= round(num_tokens) <= 24 + 3
    assert target.batch_sequences == 1
    assert target.kv_blocks is not None
    assert target.kv_blocks.total > 0
    assert (target.forwards_per_second or 0) > 0

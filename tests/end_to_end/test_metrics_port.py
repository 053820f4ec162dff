"""What Prometheus fetches from each of the three services after a request."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterable

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from specdec.client import GenerationClient
from specdec.telemetry import names
from specdec.telemetry.prometheus import prometheus_name
from tests.end_to_end.conftest import Deployment
from tests.end_to_end.prompts import PROMPTS
from tests.end_to_end.requests import chat_request

OF_ITS_CLIENT = re.compile("python_|process_|target")
"""Families that the client of Prometheus, and its OpenTelemetry reader, add."""


async def scraped(deployment: Deployment, service: str) -> dict[str, Metric]:
    """Families by name, as they are in the text."""
    lines = deployment.group[service].lines
    (address,) = (found.group(1) for line in lines if (found := re.search(r"serving metrics on ([\d.:]+)", line)))
    fetched = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read())
    return {family.name: family for family in text_string_to_metric_families(fetched.decode())}


def declared() -> set[str]:
    # The parser leaves _total out of a family's name.
    return {prometheus_name(metric).removesuffix("_total") for metric in names.METRICS.values()}


def total(families: dict[str, Metric], metric: names.MetricName, suffix: str = "") -> float:
    name = prometheus_name(metric)
    samples: Iterable[float] = (
        sample.value for sample in families[name.removesuffix("_total")].samples if sample.name == name + suffix
    )
    return sum(samples)


async def test_each_service_serves_what_it_counts(deployment: Deployment) -> None:
    request = chat_request(PROMPTS[6], num_draft_tokens=3, max_new_tokens=24)
    async with GenerationClient(deployment.combined) as client:
        answer = await client.collect(request)
    orchestrator = await scraped(deployment, "orchestrator-combined")
    draft = await scraped(deployment, "draft-combined")
    target = await scraped(deployment, "target")
    for families in (orchestrator, draft, target):
        assert {name for name in families if not OF_ITS_CLIENT.match(name)} <= declared()
    num_rounds = len(answer.rounds) - 1
    assert total(orchestrator, names.ROUND_DURATION, "_count") >= num_rounds
    assert total(orchestrator, names.TIME_TO_FIRST_TOKEN, "_count") >= 1
    assert total(orchestrator, names.NUM_ACCEPTED_TOKENS) >= sum(each.num_accepted_tokens for each in answer.rounds)
    assert total(orchestrator, names.REPLICAS_AVAILABLE) == 2
    assert total(draft, names.FORWARD_DURATION, "_count") > 0
    assert total(target, names.KV_BLOCKS) > 0
    assert total(target, names.FORWARD_ROW_COUNT, "_sum") >= num_rounds

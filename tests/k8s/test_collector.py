"""The configuration of the collector is one that it takes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.k8s.collector_config import config_problems
from tests.k8s.rendering import Document
from tests.k8s.test_monitoring import COLLECTOR


def test_the_collector_takes_its_configuration() -> None:
    assert list(config_problems(COLLECTOR)) == []


def _policies(config: Document) -> list[Document]:
    policies: list[Document] = config["processors"]["tail_sampling"]["policies"]
    return policies


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c: c["processors"]["batch"].update(timeot="2s"), "processors.batch.timeot: Extra inputs"),
        (lambda c: c["processors"]["tail_sampling"].update(decision_wait="1 minute"), "decision_wait"),
        (lambda c: _policies(c)[0].update(type="status"), "policies.0.type"),
        (lambda c: _policies(c)[0].update(type="latency"), "the policy failed is of type latency"),
        (lambda c: _policies(c)[4]["ottl_condition"].update(span_event=[]), "ottl_condition.span_event"),
        (lambda c: c["exporters"].update(otlphttp={}), "exporters.otlphttp"),
        (lambda c: c["exporters"]["otlp"]["tls"].update(insecure="yes"), "exporters.otlp.tls.insecure"),
        (lambda c: c["service"]["pipelines"]["traces"]["processors"].reverse(), "in this order"),
        (lambda c: c["service"]["telemetry"]["metrics"]["readers"][0]["pull"].pop("exporter"), "Field required"),
    ],
)
def test_a_slip_is_noticed(change: Callable[[Document], object], problem: str) -> None:
    config = copy.deepcopy(COLLECTOR)
    change(config)
    assert any(problem in found for found in config_problems(config)), list(config_problems(config))

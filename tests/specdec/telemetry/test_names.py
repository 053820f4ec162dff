import re

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, rpc_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes

from specdec.telemetry import names

CONVENTIONS = {
    value
    for module in (gen_ai_attributes, rpc_attributes, error_attributes, gen_ai_metrics)
    for value in vars(module).values()
    if isinstance(value, str)
}


@pytest.mark.parametrize("name", [*names.ATTRIBUTES, *names.METRICS])
def test_a_name_is_the_project_s_or_a_convention_s(name: str) -> None:
    assert name.startswith("specdec.") or name == "position" or name in CONVENTIONS


def test_every_attribute_is_described_and_used() -> None:
    used = {attribute for span in names.SPANS.values() for attribute in span.attributes}
    used |= {attribute for metric in names.METRICS.values() for attribute in metric.attributes}
    assert used == set(names.ATTRIBUTES)
    assert all(names.ATTRIBUTES.values())


def test_nothing_can_hold_a_prompt() -> None:
    for attribute in names.ATTRIBUTES:
        assert not re.search(r"prompt|message|content|text|token_id|stop_seq|instruction|completion", attribute)


@pytest.mark.parametrize("metric", names.METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_is_well_formed(metric: names.MetricName) -> None:
    assert metric.description.endswith(".")
    assert metric.unit in {"s", "By", "1"} or re.fullmatch(r"\{\w+\}", metric.unit)
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_the_round_s_parts_are_attributes_of_the_round() -> None:
    assert set(names.ROUND_PARTS.values()) <= set(names.ROUND.attributes)
    assert all(attribute == f"specdec.round.{part}_seconds" for part, attribute in names.ROUND_PARTS.items())

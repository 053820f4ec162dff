import pytest

from specdec.telemetry import names
from specdec.top.scrape import MalformedMetricsError, Scrape
from tests.specdec.top.serving import Emitting


def test_what_a_process_serves() -> None:
    emitting = Emitting("specdec-orchestrator")
    emitting.orchestrator.replicas_available("target", 2)
    emitting.orchestrator.replicas_available("draft", 1)
    emitting.orchestrator.fallback("timeout")
    emitting.orchestrator.fallback("timeout")
    emitting.orchestrator.fallback("overdue")
    scrape = Scrape.parse(emitting.text, 5.0)
    assert scrape.at_seconds == 5.0
    assert scrape.service_name == "specdec-orchestrator"
    assert scrape.total(names.REPLICAS_AVAILABLE) == 3
    assert scrape.total(names.REPLICAS_AVAILABLE, specdec_link="draft") == 1
    assert scrape.total(names.REPLICAS_AVAILABLE, specdec_link="none") is None
    assert scrape.by_label(names.FALLBACKS, names.CAUSE) == {"timeout": 2, "overdue": 1}
    assert scrape.total(names.RESYNCS) is None


def test_metrics_of_others_are_not_kept() -> None:
    assert Scrape.parse("# TYPE x counter\nx_total 5\ngo_info 1\n# EOF\n", 0.0).series == {}


def test_nothing_counted_yet() -> None:
    assert Scrape.parse("", 0.0).series == {}


@pytest.mark.parametrize("text", ["<html><body>hello</body></html>", "{}", "x{y 5", "hello\n", "x y z w\n"])
def test_something_else(text: str) -> None:
    with pytest.raises(MalformedMetricsError):
        Scrape.parse(text, 0.0)

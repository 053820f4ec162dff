import pytest

from specdec.top.reading import KvBlocks, reading, service_of
from specdec.top.scrape import Scrape
from tests.specdec.top.serving import Emitting


def test_an_orchestrator() -> None:
    emitting = Emitting("anything")
    emitting.orchestrator.active_requests(3)
    emitting.orchestrator.replicas_available("target", 2)
    emitting.orchestrator.replicas_available("draft", 0)
    before = Scrape.parse(emitting.text, 0.0)
    for num_draft_tokens, num_accepted_tokens in ((4, 4), (4, 1), (0, 0)):
        emitting.round(num_draft_tokens, num_accepted_tokens)
    emitting.request(0.05, 0.02)
    emitting.orchestrator.failover("target")
    emitting.orchestrator.fallback("overdue")
    read = reading("a:1", before, Scrape.parse(emitting.text, 2.0))
    assert (read.address, read.service, read.problem, read.interval_seconds) == ("a:1", "orchestrator", "", 2.0)
    assert (read.active_requests, read.targets_available, read.drafts_available) == (3, 2, 0)
    assert read.requests_per_second == 0.5
    # Three rounds with five accepted tokens, and a first token.
    assert read.tokens_per_second == pytest.approx(9 / 2)
    assert read.num_draft_tokens == 4
    assert read.acceptance_rate == pytest.approx(5 / 8)
    assert read.mean_acceptance_length == pytest.approx(1 + 5 / 3)
    assert read.ttft_p50_seconds == pytest.approx(0.05, abs=0.011)
    assert read.tpot_p50_seconds == pytest.approx(0.02, abs=0.011)
    assert (read.failovers, read.resyncs, read.fallbacks) == (1, 0, {"overdue": 1})
    assert read.open_sequences is None
    assert read.kv_blocks is None


@pytest.mark.parametrize("service", ["target", "draft"])
def test_a_service(service: str) -> None:
    emitting = Emitting("anything")
    engine = emitting.target if service == "target" else emitting.draft
    engine.open_sequences(5)
    engine.queue_length(2)
    engine.kv_queued_sequences(1)
    engine.kv_blocks(used=30, cached=20, free=50)
    before = Scrape.parse(emitting.text, 0.0)
    engine.forward(duration_seconds=0.5, num_sequences=4, num_rows=20)
    read = reading("a:1", before, Scrape.parse(emitting.text, 2.0))
    assert read.service == service
    assert (read.open_sequences, read.queued_commands, read.queued_sequences) == (5, 2, 1)
    assert (read.forwards_per_second, read.busy_share) == (0.5, 0.25)
    assert (read.batch_sequences, read.batch_rows) == (4, 20)
    assert read.kv_blocks == KvBlocks(30, 20, 50)
    assert read.kv_blocks.total == 100
    assert read.tokens_per_second is None


def test_without_an_earlier_scrape_there_are_levels_and_no_rates() -> None:
    emitting = Emitting("anything")
    emitting.orchestrator.active_requests(3)
    emitting.round(4, 4)
    read = reading("a:1", None, Scrape.parse(emitting.text, 2.0))
    assert read.active_requests == 3
    assert (read.tokens_per_second, read.acceptance_rate, read.failovers, read.interval_seconds) == (None,) * 4


def test_nothing_happened_meanwhile() -> None:
    emitting = Emitting("anything")
    emitting.orchestrator.active_requests(0)
    before = Scrape.parse(emitting.text, 0.0)
    read = reading("a:1", before, Scrape.parse(emitting.text, 2.0))
    assert (read.tokens_per_second, read.requests_per_second) == (0, 0)
    assert (read.acceptance_rate, read.num_draft_tokens, read.mean_acceptance_length) == (None, None, None)


def test_a_service_that_has_counted_nothing_is_known_by_its_name() -> None:
    assert service_of(Scrape.parse(Emitting("specdec-draft").text, 0.0)) in ("draft", "")
    assert service_of(Scrape(0.0, {}, "specdec-draft")) == "draft"
    assert service_of(Scrape(0.0, {}, "\x1bmine")) == "\N{REPLACEMENT CHARACTER}mine"
    assert service_of(Scrape(0.0, {})) == ""


def test_json_has_every_field_and_no_long_numbers() -> None:
    emitting = Emitting("anything")
    emitting.target.kv_blocks(used=1, cached=0, free=1)
    before = Scrape.parse(emitting.text, 0.0)
    emitting.target.forward(duration_seconds=0.1, num_sequences=3, num_rows=10)
    values = reading("a:1", before, Scrape.parse(emitting.text, 3.0)).to_dict()
    assert values["forwards_per_second"] == 0.333333
    assert values["kv_blocks"] == {"used": 1, "cached": 0, "free": 1}
    assert values["acceptance_rate"] is None

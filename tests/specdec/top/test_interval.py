from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from specdec.telemetry import names
from specdec.top.interval import Interval
from specdec.top.scrape import Scrape
from tests.specdec.top.serving import Emitting


@contextmanager
def between(emitting: Emitting, seconds: float = 2.0) -> Iterator[Callable[[], Interval]]:
    """From the beginning of the block until what it yields is called."""
    before = Scrape.parse(emitting.text, 10.0)
    yield lambda: Interval(before, Scrape.parse(emitting.text, 10.0 + seconds))


@pytest.fixture
def emitting() -> Emitting:
    """One that has counted something before."""
    emitting = Emitting("specdec-orchestrator")
    emitting.round(4, 4)
    emitting.request(5.0, 0.2)
    emitting.orchestrator.resync("draft")
    return emitting


def test_only_what_happened_meanwhile_counts(emitting: Emitting) -> None:
    with between(emitting) as until_now:
        for num_draft_tokens, num_accepted_tokens in ((4, 1), (2, 2), (0, 0)):
            emitting.round(num_draft_tokens, num_accepted_tokens)
        interval = until_now()
    assert interval.increase(names.NUM_DRAFT_TOKENS) == 6
    assert interval.increase(names.NUM_ACCEPTED_TOKENS) == 3
    assert interval.rate(names.ROUND_DURATION, "_count") == pytest.approx(1.5)
    assert interval.increase(names.RESYNCS) == 0


def test_a_series_that_is_new_began_at_0(emitting: Emitting) -> None:
    with between(emitting) as until_now:
        emitting.orchestrator.resync("target")
        emitting.orchestrator.resync("draft")
        interval = until_now()
    assert interval.increase_by(names.RESYNCS, names.LINK) == {"target": 1, "draft": 1}


def test_a_restart_is_no_negative_rate(emitting: Emitting) -> None:
    for _ in range(10):
        emitting.round(4, 4)
    restarted = Emitting("specdec-orchestrator")
    restarted.round(4, 2)
    interval = Interval(Scrape.parse(emitting.text, 1.0), Scrape.parse(restarted.text, 2.0))
    assert interval.increase(names.NUM_DRAFT_TOKENS) == 4
    assert interval.increase(names.ROUND_DURATION, "_count") == 1


def test_means(emitting: Emitting) -> None:
    with between(emitting) as until_now:
        emitting.target.forward(duration_seconds=0.1, num_sequences=1, num_rows=4)
        emitting.target.forward(duration_seconds=0.1, num_sequences=3, num_rows=8)
        interval = until_now()
    assert interval.mean(names.FORWARD_SEQUENCE_COUNT) == 2
    assert interval.mean(names.FORWARD_ROW_COUNT) == 6
    with between(emitting) as until_now:
        assert until_now().mean(names.FORWARD_ROW_COUNT) is None


def test_quantiles_are_those_of_the_interval(emitting: Emitting) -> None:
    # Bounds of the buckets around: 0.04, 0.06, 0.08.
    with between(emitting) as until_now:
        for _ in range(4):
            emitting.request(0.05, 0.1)
        interval = until_now()
    assert interval.quantile(names.TIME_TO_FIRST_TOKEN, 0.5) == pytest.approx(0.05)
    assert interval.quantile(names.TIME_TO_FIRST_TOKEN, 1.0) == pytest.approx(0.06)


def test_what_is_longer_than_every_bucket_counts_as_the_last_bound(emitting: Emitting) -> None:
    with between(emitting) as until_now:
        emitting.request(100.0, 0.1)
        assert until_now().quantile(names.TIME_TO_FIRST_TOKEN, 0.5) == 10.0


def test_there_is_no_quantile_of_nothing(emitting: Emitting) -> None:
    with between(emitting) as until_now:
        assert until_now().quantile(names.TIME_TO_FIRST_TOKEN, 0.5) is None
        assert until_now().quantile(names.FORWARD_DURATION, 0.5) is None

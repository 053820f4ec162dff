"""Changes of K in the trace."""

from __future__ import annotations

from orchestrator.rounds import Round
from orchestrator.traced_window_size import TracedWindowSize
from orchestrator.window_sizes import WindowSizes
from specdec.telemetry import names, tracing
from tests.orchestrator.made_rounds import made_round
from tests.recorded_spans import recorded_spans


class Listed:
    """Chooses what a test lists."""

    def __init__(self, *sizes: WindowSizes) -> None:
        self._sizes = list(sizes)
        self.observed: list[Round] = []

    def begins_with_drafts(self) -> bool:
        return not self._sizes

    def choose(self) -> WindowSizes:
        return self._sizes.pop(0)

    def observe(self, done: Round) -> None:
        self.observed.append(done)


def test_each_change_is_an_event_of_the_request() -> None:
    sizes = [WindowSizes(2, 4), WindowSizes(2, 4), WindowSizes(0, 0), WindowSizes(1, 1), WindowSizes(1, 1)]
    inner = Listed(*sizes)
    with recorded_spans() as spans:
        span = tracing.start_span(names.GENERATE)
        traced = TracedWindowSize(inner, span)
        assert [traced.choose() for _ in sizes] == sizes
        span.end()
    (recorded,) = spans.get_finished_spans()
    events = [(event.name, dict(event.attributes or {})) for event in recorded.events]
    assert events == [(names.K_EVENT, {names.ROUND_NUM_DRAFT_TOKENS: count}) for count in (4, 0, 1)]


def test_it_begins_as_the_choice_itself() -> None:
    span = tracing.start_span(names.GENERATE)
    assert TracedWindowSize(Listed(), span).begins_with_drafts()
    assert not TracedWindowSize(Listed(WindowSizes(0, 0)), span).begins_with_drafts()


def test_what_was_committed_is_told_on() -> None:
    inner = Listed()
    done = made_round(2, 1, verify_seconds=0.1)
    TracedWindowSize(inner, tracing.start_span(names.GENERATE)).observe(done)
    assert inner.observed == [done]

"""Tells the trace when K changes."""

from __future__ import annotations

from opentelemetry.trace import Span

from orchestrator.rounds import Round
from orchestrator.window_size import WindowSize
from orchestrator.window_sizes import WindowSizes
from specdec.telemetry import names


class TracedWindowSize:
    """A choice of K whose changes are events of the request's span.

    Args:
        inner: chooses.
        span: of the request.
    """

    def __init__(self, inner: WindowSize, span: Span) -> None:
        self._inner = inner
        self._span = span
        self._last = -1

    def begins_with_drafts(self) -> bool:
        """See `WindowSize`."""
        return self._inner.begins_with_drafts()

    def choose(self) -> WindowSizes:
        """See `WindowSize`."""
        sizes = self._inner.choose()
        if sizes.largest != self._last:
            self._last = sizes.largest
            self._span.add_event(names.K_EVENT, {names.ROUND_NUM_DRAFT_TOKENS: sizes.largest})
        return sizes

    def observe(self, done: Round) -> None:
        """See `WindowSize`."""
        self._inner.observe(done)

"""Requests from the spans of a trace."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from specdec.telemetry import names
from specdec.waterfall.parts import durations
from specdec.waterfall.request_view import RequestView
from specdec.waterfall.round_view import PREFILL, RoundView
from specdec.waterfall.spans import RecordedSpan

_EVENT_WORDS = {names.FAILOVER_EVENT: "failover", names.RESYNC_EVENT: "resync"}

_Children = Mapping[tuple[str, str], Sequence[RecordedSpan]]


def traced_requests(spans: Iterable[RecordedSpan]) -> list[RequestView]:
    """The requests whose `generate` span is among them, in the order of their beginning.

    A collector may deliver a span twice; it counts once.
    """
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    children: defaultdict[tuple[str, str], list[RecordedSpan]] = defaultdict(list)
    for span in by_id.values():
        children[span.trace_id, span.parent_span_id].append(span)
    generates = [span for span in by_id.values() if span.name == names.GENERATE.name]
    return [_request(span, children) for span in sorted(generates, key=lambda span: span.start)]


def _request(generate: RecordedSpan, children: _Children) -> RequestView:
    own = [
        span
        for span in children.get((generate.trace_id, generate.span_id), ())
        if span.name in (names.PREFILL.name, names.ROUND.name)
    ]
    own.sort(key=lambda span: span.start)
    rounds: list[RoundView] = []
    for span in own:
        if span.name == names.PREFILL.name:
            rounds.append(_prefill(span, generate, children))
        else:
            # A round that was given up has no attributes, so no number of its own.
            last = rounds[-1].index if rounds else 0
            rounds.append(_round(span, generate, children, otherwise=last + 1))
    _note_sizes(rounds, own, generate)
    num_tokens = generate.count(names.OUTPUT_TOKENS) or None
    first = next((span.end for span in own if span.name == names.PREFILL.name and not span.is_error), None)
    tpot_seconds = None
    if first is not None and num_tokens is not None:
        # Of several completions the pace of all of them together would say little.
        num_prefills = sum(span.name == names.PREFILL.name for span in own)
        last = max(span.end for span, each in zip(own, rounds, strict=True) if each.next_token_kind)
        if num_prefills == 1 and num_tokens > 1:
            tpot_seconds = max(0, last - first) / 1e9 / (num_tokens - 1)
    return RequestView(
        rounds=tuple(rounds),
        request_id=generate.text(names.REQUEST_ID),
        trace_id=generate.trace_id,
        span_id=generate.span_id,
        model=generate.text(names.MODEL),
        acceptance_rule=generate.text(names.ACCEPTANCE_RULE),
        status=generate.text(names.STATUS_CODE),
        finish_reason=generate.text(names.FINISH_REASONS),
        began_unix_seconds=generate.start / 1e9,
        duration_seconds=generate.seconds,
        num_prompt_tokens=generate.count(names.INPUT_TOKENS) or None,
        num_cached_tokens=generate.count(names.CACHED_TOKENS) if names.CACHED_TOKENS in generate.attributes else None,
        num_generated_tokens=num_tokens,
        ttft_seconds=max(0, first - generate.start) / 1e9 if first is not None else None,
        tpot_seconds=tpot_seconds,
        num_fallback_rounds=(
            generate.count(names.NUM_FALLBACK_ROUNDS) if names.NUM_FALLBACK_ROUNDS in generate.attributes else None
        ),
    )


def _prefill(span: RecordedSpan, generate: RecordedSpan, children: _Children) -> RoundView:
    window = _window_under(span, children)
    measured = {}
    if window is not None:
        queue, compute = window.number(names.QUEUE_SECONDS) or 0.0, window.number(names.COMPUTE_SECONDS) or 0.0
        measured = {
            "target_queue": queue,
            "target_compute": compute,
            "network": max(0.0, span.seconds - queue - compute),
        }
    return RoundView(
        index=0,
        start_seconds=_since(generate, span),
        wall_seconds=span.seconds,
        durations=durations(span.seconds, measured),
        next_token_kind="" if span.is_error else PREFILL,
        batch_sequences=window.count(names.FORWARD_SEQUENCES) if window is not None else 0,
        error=_error(span),
    )


def _round(span: RecordedSpan, generate: RecordedSpan, children: _Children, *, otherwise: int) -> RoundView:
    verify = next(
        (each for each in children.get((span.trace_id, span.span_id), ()) if each.name == names.VERIFY.name), None
    )
    window = _window_under(verify, children) if verify is not None else None
    measured = {part: value for part, name in names.ROUND_PARTS.items() if (value := span.number(name)) is not None}
    events = [_EVENT_WORDS[event.name] for event in verify.events if event.name in _EVENT_WORDS] if verify else []
    return RoundView(
        index=span.count(names.ROUND_INDEX) or otherwise,
        start_seconds=_since(generate, span),
        wall_seconds=span.seconds,
        durations=durations(span.seconds, measured),
        base_length=span.count(names.ROUND_BASE_LENGTH),
        num_draft_tokens=span.count(names.ROUND_NUM_DRAFT_TOKENS),
        num_accepted_tokens=span.count(names.ROUND_NUM_ACCEPTED_TOKENS),
        next_token_kind=span.text(names.ROUND_NEXT_TOKEN_KIND),
        draft_source=span.text(names.DRAFT_SOURCE),
        ahead=span.text(names.AHEAD_OUTCOME),
        is_candidate=span.attributes.get(names.ROUND_IS_CANDIDATE) is True,
        fallback=span.text(names.ROUND_FALLBACK),
        batch_sequences=window.count(names.FORWARD_SEQUENCES) if window is not None else 0,
        events=tuple(events),
        error=_error(span),
    )


def _note_sizes(rounds: list[RoundView], spans: Sequence[RecordedSpan], generate: RecordedSpan) -> None:
    """Add each change of K to the round in which it was chosen."""
    starts = [span.start for span in spans]
    for event in generate.events:
        if event.name != names.K_EVENT:
            continue
        place = bisect.bisect_right(starts, event.time) - 1
        if place >= 0:
            chosen = f"K={event.attributes.get(names.ROUND_NUM_DRAFT_TOKENS, '?')}"
            rounds[place] = replace(rounds[place], events=(*rounds[place].events, chosen))


def _window_under(span: RecordedSpan, children: _Children) -> RecordedSpan | None:
    """What the target said of its part: the last window, if the sequence was opened again meanwhile."""
    windows = [
        each for each in children.get((span.trace_id, span.span_id), ()) if each.name == names.TARGET_WINDOW.name
    ]
    return max(windows, key=lambda each: each.start, default=None)


def _since(generate: RecordedSpan, span: RecordedSpan) -> float:
    return max(0, span.start - generate.start) / 1e9


def _error(span: RecordedSpan) -> str:
    return (span.text(names.ERROR_TYPE) or "unknown") if span.is_error else ""

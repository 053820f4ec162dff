"""A request's rounds on the terminal: one line a round, its parts to scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from specdec.waterfall.facts import duration_text, facts, hidden_text, part_totals, title
from specdec.waterfall.parts import PARTS
from specdec.waterfall.request_view import RequestView
from specdec.waterfall.round_view import BONUS, PREFILL, RECOVERED, RoundView

GLYPHS = {
    "draft_queue": ("▒", "dark_orange"),
    "draft_compute": ("█", "dark_orange"),
    "network": ("━", "grey62"),
    "target_queue": ("▒", "dodger_blue1"),
    "target_compute": ("█", "dodger_blue1"),
    "waiting": ("·", "grey50"),
    "unknown": ("?", "grey50"),
}
"""How each part is drawn where there are colours; where there are none, by its letter."""
_LETTERS = {part.name: part.letter for part in PARTS}
_KINDS = {PREFILL: "", RECOVERED: "yellow", BONUS: "bright_blue", "": "dim"}
_WIDE = 100
"""Columns from which on there is room for everything."""
_NARROWEST_BAR = 12
_MOST_NOTES = 34
_LONGEST_MODEL = 20
_ID_CHARACTERS = 12
"""Of an id, where many are listed: enough to choose by."""


class Bar:
    """The parts of a round, as long as they took; a longer one than the scale ends with ›.

    Args:
        round_view: whose.
        scale_seconds: what the full width stands for.
    """

    def __init__(self, round_view: RoundView, scale_seconds: float) -> None:
        self._parts = round_view.durations.parts
        self._scale_seconds = scale_seconds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        has_colours = console.color_system is not None and not console.no_color
        width = options.max_width
        used, seconds = 0, 0.0
        is_cut = sum(self._parts.values()) > self._scale_seconds * 1.0001
        for part in PARTS:
            seconds += self._parts.get(part.name, 0.0)
            # Ends are rounded, not lengths: so the errors do not add up.
            end = min(round(width * seconds / self._scale_seconds), width - is_cut)
            if end > used:
                glyph, colour = GLYPHS[part.name]
                shown = glyph if has_colours else _LETTERS[part.name]
                yield Segment(shown * (end - used), Style(color=colour))
                used = end
        if is_cut:
            yield Segment("›", Style(bold=True))
            used += 1
        yield Segment(" " * (width - used))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_NARROWEST_BAR, options.max_width)


def waterfall(request: RequestView, *, width: int, last: int | None = None) -> RenderableType:
    """The whole picture.

    Args:
        request: what to draw.
        width: columns that there are.
        last: only so many rounds, the newest; None: all.
    """
    rounds = request.rounds if last is None else request.rounds[-last:]
    return Group(header(request), _rounds_table(rounds, request.scale_seconds, width), _totals(request))


def header(request: RequestView) -> RenderableType:
    """What it is, and what its rounds add up to."""
    line = Text()
    for fact in facts(request):
        if line:
            line.append(" · ")
        line.append(f"{fact.label} ", "dim").append(fact.value, "bold")
        if fact.detail:
            line.append(f" ({fact.detail})", "dim")
    return Group(Text(title(request), "bold"), line)


def requests_table(requests: Iterable[RequestView], *, width: int) -> Table:
    """A line a request."""
    is_wide = width >= _WIDE
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    if is_wide:
        table.add_column("began (UTC)", no_wrap=True)
    table.add_column("request", no_wrap=True, min_width=_ID_CHARACTERS)
    table.add_column("trace", no_wrap=True, min_width=_ID_CHARACTERS)
    if is_wide:
        table.add_column("model", no_wrap=True, overflow="ellipsis", max_width=_LONGEST_MODEL)
    table.add_column("status", no_wrap=True, overflow="ellipsis")
    for name in ("tokens", "rounds", "accepted", "TTFT", "duration")[: None if is_wide else -1]:
        table.add_column(name, justify="right", no_wrap=True)
    for each in requests:
        rate = each.acceptance_rate
        row: list[RenderableType] = [
            _id(each.request_id),
            _id(each.trace_id),
            Text(each.status or "running", "" if each.status in ("", "OK") else "red"),
            "–" if each.num_generated_tokens is None else str(each.num_generated_tokens),
            str(each.num_rounds),
            "–" if rate is None else f"{rate:.0%}",
            "–" if each.ttft_seconds is None else duration_text(each.ttft_seconds),
        ]
        if is_wide:
            row.insert(2, Text(each.model or "–"))
            row.insert(0, _clock(each.began_unix_seconds))
            row.append("–" if each.duration_seconds is None else duration_text(each.duration_seconds))
        table.add_row(*row)
    return table


def _rounds_table(rounds: Sequence[RoundView], scale_seconds: float, width: int) -> Table:
    is_wide = width >= _WIDE
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, width=width)
    table.add_column("round", justify="right", no_wrap=True)
    if is_wide:
        table.add_column("at ms", justify="right", no_wrap=True)
    table.add_column("acc/K", justify="right", no_wrap=True)
    table.add_column("then", no_wrap=True)
    if is_wide:
        table.add_column("from", no_wrap=True)
    table.add_column(f"full width: {duration_text(scale_seconds)}", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("ms", justify="right", no_wrap=True)
    notes = [", ".join(reversed(each.notes)) for each in rounds]
    longest = max(map(len, notes), default=0)
    if longest:
        most = _MOST_NOTES if is_wide else _MOST_NOTES // 2
        table.add_column("notes", no_wrap=True, overflow="ellipsis", width=min(most, max(longest, 5)))
    for each, note in zip(rounds, notes, strict=True):
        row: list[RenderableType] = [str(each.index)]
        if is_wide:
            row.append(f"{1e3 * each.start_seconds:.1f}")
        accepted = Text(f"{each.num_accepted_tokens}/{each.num_draft_tokens}", "green" * bool(each.num_accepted_tokens))
        row.append(accepted if each.num_draft_tokens else "–")
        row.append(Text(each.next_token_kind or "–", _KINDS.get(each.next_token_kind, "")))
        if is_wide:
            row.append(Text(each.draft_source or "–"))
        row.extend((Bar(each, scale_seconds), f"{1e3 * each.wall_seconds:.1f}"))
        if longest:
            row.append(Text(note, _note_style(each)))
        table.add_row(*row)
    return table


def _totals(request: RequestView) -> RenderableType:
    """Each part of all rounds together, which is the legend too."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column()
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for total in part_totals(request):
        sign = Sign(total.name)
        table.add_row(sign, Text(total.label), duration_text(total.seconds), total.share_text)
    hidden = hidden_text(request)
    return Group(table, Text(hidden, "dim")) if hidden else table


class Sign:
    """What a part looks like in a bar."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        has_colours = console.color_system is not None and not console.no_color
        glyph, colour = GLYPHS[self._part]
        yield Segment(2 * (glyph if has_colours else _LETTERS[self._part]), Style(color=colour))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(2, 2)


def _note_style(each: RoundView) -> str:
    if each.error or any(not event.startswith("K=") for event in each.events):
        return "red"
    return "yellow" if each.fallback else "dim"


def _id(full: str) -> Text:
    return Text(full[:_ID_CHARACTERS] or "–")


def _clock(unix_seconds: float | None) -> str:
    if unix_seconds is None:
        return "–"
    return datetime.fromtimestamp(unix_seconds, tz=timezone.utc).strftime("%H:%M:%S.%f")[:-3]

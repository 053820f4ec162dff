"""A request's rounds as one page that needs nothing else: no other file, no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from specdec.waterfall.facts import duration_text, facts, hidden_text, part_totals
from specdec.waterfall.parts import PARTS
from specdec.waterfall.request_view import RequestView
from specdec.waterfall.round_view import RoundView

MAX_ROUNDS = 1000
"""More are not drawn: a browser would be slow, and nobody would look at them."""
_NUM_TICKS = 5
_LABELS = {part.name: part.label for part in PARTS}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar, in per cent of its width."""

    name: str
    label: str
    left: str
    width: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """A round and its bar."""

    round: RoundView
    pieces: tuple[Piece, ...]
    strip: tuple[Piece, ...]
    """The same on the time axis of the whole request."""
    is_cut: bool
    said: str
    """All of it in words, for those who do not see the bar."""


def page(request: RequestView) -> str:
    """HTML. No text of prompts or outputs is in it."""
    # Whatever was read elsewhere is escaped, as everything else.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals["duration"] = duration_text
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    rounds = request.rounds[:MAX_ROUNDS]
    totals = part_totals(request)
    scale_seconds = request.scale_seconds
    whole = max((each.start_seconds + each.wall_seconds for each in rounds), default=0.0) or 1.0
    return template.render(
        request=request,
        facts=facts(request),
        totals=totals,
        total_pieces=tuple(_pieces(request.part_seconds, 0.0, sum(request.part_seconds.values()) or 1.0)),
        hidden=hidden_text(request),
        rows=[_row(each, scale_seconds, whole) for each in rounds],
        num_left_out=len(request.rounds) - len(rounds),
        has_events=any(each.notes for each in rounds),
        scale=[duration_text(scale_seconds * tick / _NUM_TICKS) for tick in range(_NUM_TICKS + 1)],
        axis=[duration_text(whole * tick / _NUM_TICKS) for tick in range(_NUM_TICKS + 1)],
    )


def _row(each: RoundView, scale_seconds: float, whole_seconds: float) -> Row:
    parts = each.durations.parts
    shares = ", ".join(f"{_LABELS[name]} {duration_text(parts[name])}" for name in _LABELS if name in parts)
    drafted = f"{each.num_accepted_tokens} of {each.num_draft_tokens} draft tokens accepted"
    said = ", ".join(
        filter(
            None,
            (
                f"Round {each.index}" if each.index else "Prefill",
                duration_text(each.wall_seconds),
                drafted if each.num_draft_tokens else "",
                shares,
                *each.notes,
            ),
        )
    )
    return Row(
        round=each,
        pieces=tuple(_pieces(parts, 0.0, scale_seconds)),
        strip=tuple(_pieces(parts, each.start_seconds, whole_seconds)),
        is_cut=sum(parts.values()) > 1.0001 * scale_seconds,
        said=said,
    )


def _pieces(parts: Mapping[str, float], start_seconds: float, full_seconds: float) -> Iterator[Piece]:
    """Of a bar that begins at `start_seconds`; what would end behind its right edge is cut there."""
    left = start_seconds / full_seconds
    for part in PARTS:
        seconds = parts.get(part.name, 0.0)
        right = min(left + seconds / full_seconds, 1.0)
        if right > left:
            text = f"{part.label}: {duration_text(seconds)}"
            yield Piece(part.name, part.label, f"{100 * left:.3f}%", f"{100 * (right - left):.3f}%", text)
        left = right

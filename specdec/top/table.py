"""Readings of a system on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec.top.reading import KvBlocks, Reading
from specdec.waterfall.facts import duration_text

_NONE = "–"
_KV_CELLS = 20
_ROOM_FOR_CACHED, _ROOM_FOR_BAR = 88, 116
_ALMOST_FULL = 0.9
_ORDER = ("orchestrator", "target", "draft", "")


def system_table(readings: Sequence[Reading], *, width: int) -> RenderableType:
    """All processes: orchestrators first, then those that run models, then those that do not answer.

    Args:
        readings: one of each process.
        width: columns that there are.
    """
    answered = [each for each in readings if not each.problem]
    orchestrators = [each for each in answered if each.service == "orchestrator"]
    services = sorted(
        (each for each in answered if each.service != "orchestrator"),
        key=lambda each: _ORDER.index(each.service) if each.service in _ORDER else len(_ORDER),
    )
    shown: list[RenderableType] = []
    if orchestrators:
        shown.extend((_requests(orchestrators), _speculation(orchestrators)))
    if services:
        shown.append(_services(services, width))
    shown.extend(
        Text.assemble((f" {each.service or 'process'} {each.address} ", "bold red"), (each.problem, "red"))
        for each in readings
        if each.problem
    )
    return Group(*shown)


def _requests(readings: Iterable[Reading]) -> Table:
    table = _table("orchestrator", "targets", "drafts", "requests", "req/s", "tokens/s", "TTFT p50", "TPOT p50")
    for each in readings:
        table.add_row(
            each.address,
            _available(each.targets_available, is_needed=True),
            _available(each.drafts_available, is_needed=False),
            _number(each.active_requests),
            _number(each.requests_per_second, 1),
            _number(each.tokens_per_second, 1),
            _duration(each.ttft_p50_seconds),
            _duration(each.tpot_p50_seconds),
        )
    return table


def _speculation(readings: Iterable[Reading]) -> Table:
    table = _table("orchestrator", "K", "accepted", "mean length*", "failovers", "resyncs", "fallbacks")
    table.columns[-1].justify = "left"
    # Causes may be many: only they go on in the next line.
    table.columns[-1].no_wrap = False
    table.caption = (
        "* mean acceptance length: 1 + accepted / rounds, the bonus counted. All of it since the last refresh."
    )
    table.caption_justify = "left"
    for each in readings:
        fallbacks = ", ".join(f"{count} {cause}" for cause, count in sorted(each.fallbacks.items()))
        table.add_row(
            each.address,
            _number(each.num_draft_tokens, 1),
            _share(each.acceptance_rate),
            _number(each.mean_acceptance_length, 2),
            Text(_number(each.failovers), "red" if each.failovers else ""),
            Text(_number(each.resyncs), "yellow" if each.resyncs else ""),
            Text(fallbacks or ("0" if each.interval_seconds is not None else _NONE), "yellow" if fallbacks else ""),
        )
    return table


def _services(readings: Iterable[Reading], width: int) -> Table:
    table = _table("process", "", "open", "queued", "passes/s", "busy", "batch", "KV used")
    table.columns[1].justify = "left"
    if width >= _ROOM_FOR_CACHED:
        table.add_column("cached", justify="right", no_wrap=True)
    if width >= _ROOM_FOR_BAR:
        table.add_column("of its blocks", no_wrap=True)
    for each in readings:
        batch = _NONE
        if each.batch_sequences is not None and each.batch_rows is not None:
            batch = f"{each.batch_sequences:.1f} × {each.batch_rows / max(each.batch_sequences, 1):.1f}"
        blocks = each.kv_blocks
        queued = None if each.queued_commands is None else each.queued_commands + (each.queued_sequences or 0)
        row: list[RenderableType] = [
            each.address,
            each.service or "?",
            _number(each.open_sequences),
            Text(_number(queued), "yellow" if each.queued_sequences else ""),
            _number(each.forwards_per_second, 1),
            _share(each.busy_share),
            batch,
            _share(blocks.used / blocks.total if blocks is not None and blocks.total else None),
        ]
        if width >= _ROOM_FOR_CACHED:
            row.append(_share(blocks.cached / blocks.total if blocks is not None and blocks.total else None))
        if width >= _ROOM_FOR_BAR:
            row.append(_kv_bar(blocks))
        table.add_row(*row)
    table.caption = "open: sequences; batch: sequences × rows of each, in a forward pass"
    table.caption_justify = "left"
    return table


def _table(first: str, *names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _kv_bar(blocks: KvBlocks | None) -> Text:
    if blocks is None or not blocks.total:
        return Text(_NONE)
    used = round(_KV_CELLS * blocks.used / blocks.total)
    cached = round(_KV_CELLS * (blocks.used + blocks.cached) / blocks.total) - used
    is_almost_full = blocks.used / blocks.total > _ALMOST_FULL
    return Text.assemble(
        ("█" * used, "red" if is_almost_full else "cyan"),
        ("▒" * cached, "cyan"),
        ("·" * (_KV_CELLS - used - cached), "dim"),
        f" {blocks.total}",
    )


def _available(count: int | None, *, is_needed: bool) -> Text:
    if count is None:
        return Text(_NONE)
    return Text(str(count) if count else "none", "" if count else "bold red" if is_needed else "yellow")


def _number(value: float | None, digits: int = 0) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0%}"


def _duration(seconds: float | None) -> str:
    return _NONE if seconds is None else duration_text(seconds)

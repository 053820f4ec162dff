"""The results of `benchmarks.latency` as a table on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

Cell = Mapping[str, Any]


def _number(name: str, how: str, factor: float = 1.0) -> Callable[[Cell], str]:
    def show(cell: Cell) -> str:
        value = cell[name]
        return "–" if value is None else format(factor * value, how)

    return show


_COLUMNS: tuple[tuple[str, Callable[[Cell], str]], ...] = (
    ("pipeline", lambda cell: str(cell["pipeline"])),
    ("RTT\nms", _number("rtt_seconds", "g", 1e3)),
    ("acc.", _number("acceptance", "g")),
    ("K", lambda cell: str(cell["num_draft_tokens"])),
    ("tok/s", _number("measured_tokens_per_second", ".1f")),
    ("formula", _number("predicted_tokens_per_second", ".1f")),
    ("required", _number("required_tokens_per_second", ".1f")),
    ("met", lambda cell: {None: "–", True: "yes", False: "NO"}[cell["is_met"]]),
    ("tokens\na round", _number("mean_acceptance_length", ".2f")),
    ("hits", _number("hit_rate", ".0%")),
    ("wasted\ndrafts", _number("wasted_drafts_per_round", ".1f")),
    ("round\nms", _number("round_seconds", ".1f", 1e3)),
    ("draft", lambda cell: f"{1e3 * (cell['draft_queue_seconds'] + cell['draft_compute_seconds']):.1f}"),
    ("network", _number("network_seconds", ".1f", 1e3)),
    ("queue", _number("target_queue_seconds", ".1f", 1e3)),
    ("verify", _number("target_compute_seconds", ".1f", 1e3)),
    ("waiting", _number("waiting_seconds", ".1f", 1e3)),
)


def latency_table(cells: Sequence[Cell], *, title: str, is_simulated: bool) -> Table:
    """One row for each cell of `latency_cell.cell`; wasted drafts are by round, times in ms."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, title=f"SIMULATED: {title}" if is_simulated else title)
    for name, _ in _COLUMNS:
        table.add_column(name, justify="left" if name == "pipeline" else "right")
    for row in cells:
        table.add_row(*(show(row) for _, show in _COLUMNS))
    return table

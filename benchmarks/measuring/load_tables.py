"""The results of `benchmarks.load` as tables on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.table import Table


class _Column(NamedTuple):
    head: str
    show: Callable[[Mapping[str, Any]], str]


def _number(name: str, how: str, factor: float = 1.0) -> Callable[[Mapping[str, Any]], str]:
    def show(row: Mapping[str, Any]) -> str:
        value = row[name]
        return "–" if value is None else format(factor * value, how)

    return show


def _pair(name: str, how: str, factor: float = 1.0) -> Callable[[Mapping[str, Any]], str]:
    p50, p99 = _number(f"{name}_p50", how, factor), _number(f"{name}_p99", how, factor)
    return lambda row: f"{p50(row)}/{p99(row)}"


_CELL_COLUMNS = (
    _Column("clients", lambda row: str(row["num_clients"])),
    _Column("K", lambda row: str(row["num_draft_tokens"])),
    _Column("tok/s", _number("tokens_per_second", ".1f")),
    _Column("over\nK = 0", _number("over_k0", ".2f")),
    _Column("over 1\nclient", _number("over_one_client", ".2f")),
    _Column("good\nreq/s", _number("goodput_requests_per_second", ".2f")),
    _Column("within\ngoals", _number("share_within_goals", ".0%")),
    _Column("TTFT ms\np50/p99", _pair("ttft_seconds", ".0f", 1000)),
    _Column("token ms\np50/p99", _pair("inter_token_seconds", ".1f", 1000)),
    _Column("acc.\nlength", _number("mean_acceptance_length", ".2f")),
    _Column("seqs\na pass", _number("target_sequences_mean", ".1f")),
    _Column("rows\na pass", _number("target_rows_mean", ".1f")),
    _Column("target\nbusy", _number("target_busy_share", ".0%")),
    _Column("draft\nbusy", _number("draft_busy_share", ".0%")),
)
_COMPARISON_COLUMNS = (
    _Column("clients", lambda row: str(row["num_clients"])),
    _Column("K", lambda row: str(row["num_draft_tokens"])),
    _Column("split over\nco-located", _number("split_over_colocated", ".2f")),
    _Column("formula\nby round", _number("formula_by_round", ".2f")),
    _Column("share\nreached", _number("share_of_formula_by_round", ".0%")),
    _Column("formula\nby pass", _number("formula_by_pass", ".2f")),
    _Column("share\nreached", _number("share_of_formula_by_pass", ".0%")),
    _Column("target\nbusy", _number("target_busy_share", ".0%")),
)
_AUTO_COLUMNS = (
    _Column("side", lambda row: str(row["side"])),
    _Column("clients", lambda row: str(row["num_clients"])),
    _Column("best\nfixed K", lambda row: str(row["best_fixed_num_draft_tokens"])),
    _Column("auto over\nbest fixed", _number("over_best_fixed", ".2f")),
    _Column("auto over\nK = 0", _number("over_k0", ".2f")),
)


def load_tables(
    cells: Sequence[Mapping[str, Any]],
    auto: Sequence[Mapping[str, Any]],
    comparisons: Sequence[Mapping[str, Any]],
    *,
    is_simulated: bool,
) -> list[Table]:
    """A table for each side, and what is compared; where devices are simulated every title and figure says so."""
    tables = []
    for side in dict.fromkeys(cell["side"] for cell in cells):
        rows = [cell for cell in cells if cell["side"] == side]
        tables.append(_table(f"Load, {side}", _CELL_COLUMNS, rows, is_simulated=is_simulated, groups="num_clients"))
    if auto:
        tables.append(_table("K chosen by the server", _AUTO_COLUMNS, auto, is_simulated=is_simulated))
    if comparisons:
        title = "Split against co-located: 1 + K * t_draft / t_verify"
        tables.append(_table(title, _COMPARISON_COLUMNS, comparisons, is_simulated=is_simulated))
    return tables


def _table(
    title: str,
    columns: Sequence[_Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    is_simulated: bool,
    groups: str = "",
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=f"SIMULATED: {title}" if is_simulated else title)
    for column in columns:
        is_figure = column.head not in ("clients", "K", "side")
        head = f"sim.\n{column.head}" if is_simulated and is_figure else column.head
        table.add_column(head, justify="right", no_wrap=True)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        is_last = bool(groups) and following is not None and following[groups] != row[groups]
        table.add_row(*(column.show(row) for column in columns), end_section=is_last)
    return table

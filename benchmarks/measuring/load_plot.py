"""The results of `benchmarks.load` as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring.load_report import by_clients

_PANELS: tuple[tuple[str, Callable[[Mapping[str, Any]], float | None]], ...] = (
    ("tokens/s", lambda cell: cell["tokens_per_second"]),
    ("inter-token latency p50, ms", lambda cell: _milliseconds(cell["inter_token_seconds_p50"])),
    ("goodput, requests/s", lambda cell: cell["goodput_requests_per_second"]),
    ("target busy share", lambda cell: cell["target_busy_share"]),
)


class PlotError(Exception):
    """There is nothing to plot with; the message says what to install."""


def check_plotting() -> None:
    """Find out before a long run.

    Raises:
        PlotError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PlotError("--plot needs matplotlib: pip install 'specdec[bench]'") from error


def save_load_plot(
    path: Path,
    cells: Sequence[Mapping[str, Any]],
    comparisons: Sequence[Mapping[str, Any]],
    *,
    title: str,
    is_simulated: bool,
) -> None:
    """Draw curves over the number of clients, one for each K; dashed for the co-located side.

    Args:
        path: PNG, made or replaced.
        cells: of `load_report.cells`.
        comparisons: of `load_report.comparisons`; empty: no panel for them.
        title: of the picture.
        is_simulated: the title and every axis say so.
    """
    from matplotlib.figure import Figure

    label = "simulated " if is_simulated else ""
    rows, columns = 2, 2 + bool(comparisons)
    figure = Figure(figsize=(5.0 * columns, 4.0 * rows), layout="constrained")
    clients = sorted({cell["num_clients"] for cell in cells})
    figure.suptitle(f"SIMULATED: {title}" if is_simulated else title)
    for index, (name, value) in enumerate(_PANELS):
        axes = figure.add_subplot(rows, columns, index + 1)
        for side, style in (("split", "o-"), ("colocated", "x--")):
            for position, (k, curve) in enumerate(by_clients(cells, side, value).items()):  # type: ignore[arg-type]
                suffix = "" if side == "split" else ", co-located"
                axes.plot(*zip(*curve, strict=True), style, color=f"C{position}", label=f"K = {k}{suffix}")
        _label(axes, label + name, clients)
    if comparisons:
        axes = figure.add_subplot(rows, columns, len(_PANELS) + 1)
        for position, k in enumerate(dict.fromkeys(row["num_draft_tokens"] for row in comparisons)):
            compared = [row for row in comparisons if row["num_draft_tokens"] == k]
            places = [row["num_clients"] for row in compared]
            ratios, formula = ([row[name] for row in compared] for name in ("split_over_colocated", "formula_by_round"))
            axes.plot(places, ratios, "o-", color=f"C{position}", label=f"K = {k}")
            if None not in formula:
                axes.plot(places, formula, ":", color=f"C{position}", label=f"formula, K = {k}")
        _label(axes, f"{label}split / co-located tokens/s", clients)
    figure.savefig(path, dpi=110)


def _label(axes: Any, name: str, clients: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(clients, labels=list(map(str, clients)))
    axes.set_xlabel("clients")
    axes.set_ylabel(name)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize="small")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds

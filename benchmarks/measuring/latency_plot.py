"""The results of `benchmarks.latency` as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def save_latency_plot(path: Path, cells: Sequence[Mapping[str, Any]], *, title: str, is_simulated: bool) -> None:
    """Tokens a second over the round trip, a panel for each acceptance; dashed what the formula says.

    Args:
        path: PNG, made or replaced.
        cells: of `latency_cell.cell`, of one grid.
        title: of the picture.
        is_simulated: the title and every axis say so.
    """
    from matplotlib.figure import Figure

    label = "simulated " if is_simulated else ""
    panels = list(dict.fromkeys(cell["acceptance"] for cell in cells))
    figure = Figure(figsize=(max(8.0, 5.5 * len(panels)), 4.5), layout="constrained")
    figure.suptitle(f"SIMULATED: {title}" if is_simulated else title, fontsize="medium")
    for index, acceptance in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), index + 1)
        shown = [cell for cell in cells if cell["acceptance"] == acceptance]
        for position, pipeline in enumerate(dict.fromkeys(cell["pipeline"] for cell in shown)):
            curve = [cell for cell in shown if cell["pipeline"] == pipeline]
            places = [1e3 * cell["rtt_seconds"] for cell in curve]
            color = f"C{position}"
            axes.plot(places, [cell["measured_tokens_per_second"] for cell in curve], "o-", color=color, label=pipeline)
            axes.plot(places, [cell["predicted_tokens_per_second"] for cell in curve], "--", color=color)
            required = [(1e3 * cell["rtt_seconds"], cell["required_tokens_per_second"]) for cell in curve]
            required = [pair for pair in required if pair[1] is not None]
            if required:
                axes.plot(*zip(*required, strict=True), "_", color=color, markersize=14)
        axes.set_xlabel(f"{label}round trip, ms")
        axes.set_ylabel(f"{label}tokens/s")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(title="formula dashed, required as bars", fontsize="small")
        if acceptance is not None:
            axes.set_title(f"acceptance {acceptance:g}")
    figure.savefig(path, format="png", dpi=110)

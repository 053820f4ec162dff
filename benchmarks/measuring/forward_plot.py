"""The results of `benchmarks.forward` as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring.forward_report import Clock, Entry
from benchmarks.measuring.forward_timing import SWEEPS

_AXES = {"rows": "num_rows", "sequences": "num_sequences", "context": "context"}


def save_forward_plot(path: Path, entries: Sequence[Entry], sides: Sequence[str], *, title: str, clock: Clock) -> None:
    """Time over rows, sequences and context, one curve a side.

    Args:
        path: PNG, made or replaced.
        entries: of `forward_report.entries`.
        sides: in order.
        title: of the picture.
        clock: which time is drawn.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0 * len(SWEEPS), 4.0), layout="constrained")
    figure.suptitle(title)
    for index, sweep in enumerate(SWEEPS):
        axes = figure.add_subplot(1, len(SWEEPS), index + 1)
        for side in sides:
            members = [entry for entry in entries if entry["sweep"] == sweep and entry["side"] == side]
            sizes = [float(entry[_AXES[sweep]]) for entry in members]
            axes.plot(sizes, [1e3 * float(entry[f"{clock}_seconds"]) for entry in members], marker="o", label=side)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(sweep if sweep != "context" else "context, tokens")
        axes.set_ylabel(f"{clock} time of a pass, ms")
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].legend()
    figure.savefig(path, format="png", dpi=120)

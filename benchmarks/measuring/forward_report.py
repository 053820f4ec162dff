"""What the passes of `benchmarks.forward` add up to, as JSON values and as tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from rich import box
from rich.table import Table

from benchmarks.measuring.forward_timing import SWEEPS, Duration, Point, Sweep

Clock = Literal["wall", "cpu"]
Times = Mapping[str, Mapping[Point, Sequence[Duration]]]
"""By side and point; the passes of one repeat have the same index everywhere."""
Entry = dict[str, float | str]

_NAMES: dict[Sweep, str] = {"rows": "num_rows", "sequences": "num_sequences", "context": "context"}


def entries(sweeps: Mapping[Sweep, Sequence[Point]], times: Times, clock: Clock) -> list[Entry]:
    """One for each sweep, side and point.

    Medians over the repeats. Ratios are taken within a repeat first, so that a slow moment of the machine hits both
    sides of them; `_spread` is the distance of their quartiles.

    Args:
        sweeps: points in order; the first of `rows` is the one that windows are compared with.
        times: the first side is the baseline.
        clock: which of the two times ratios are made of.
    """
    baseline = next(iter(times))
    found: list[Entry] = []
    for sweep in SWEEPS:
        for side, by_point in times.items():
            for point in sweeps[sweep]:
                own = _seconds(by_point[point], clock)
                over_baseline = _ratios(own, _seconds(times[baseline][point], clock))
                over_first = _ratios(own, _seconds(by_point[sweeps[sweep][0]], clock))
                over_one_row = _ratios(own, _seconds(times[baseline][sweeps[sweep][0]], clock))
                found.append(
                    {
                        "sweep": sweep,
                        "side": side,
                        "num_sequences": point.num_sequences,
                        "num_rows": point.num_rows,
                        "context": point.context,
                        "wall_seconds": statistics.median(each.wall_seconds for each in by_point[point]),
                        "cpu_seconds": statistics.median(each.cpu_seconds for each in by_point[point]),
                        "least_seconds": min(own),
                        "over_baseline": statistics.median(over_baseline),
                        "over_baseline_spread": _spread(over_baseline),
                        "over_first": statistics.median(over_first),
                        "over_first_spread": _spread(over_first),
                        "over_baselines_first": statistics.median(over_one_row),
                    }
                )
    return found


def tables(found: Sequence[Entry], sides: Sequence[str], clock: Clock) -> list[Table]:
    """One for each sweep: time, ratio to the baseline, and to the sweep's first point of the same side."""
    made = []
    for sweep in SWEEPS:
        members = [entry for entry in found if entry["sweep"] == sweep]
        table = Table(box=box.SIMPLE_HEAD, padding=0, title=f"Forward passes by {sweep}, {clock} time")
        table.add_column(sweep, justify="right", no_wrap=True)
        for side in sides:
            names = [side.replace("/", "\n") + "\nms", "over\nits\nfirst"]
            for name in names if side == sides[0] else [*names, "over\nbase-\nline"]:
                table.add_column(name, justify="right", no_wrap=True)
        for size in dict.fromkeys(entry[_NAMES[sweep]] for entry in members):
            cells = []
            for side in sides:
                (entry,) = (each for each in members if each["side"] == side and each[_NAMES[sweep]] == size)
                cells += [f"{1e3 * float(entry[f'{clock}_seconds']):.1f}", f"{entry['over_first']:.2f}"]
                if side != sides[0]:
                    cells.append(f"{entry['over_baseline']:.2f}")
            table.add_row(str(size), *cells)
        made.append(table)
    return made


def _seconds(durations: Sequence[Duration], clock: Clock) -> list[float]:
    return [each.wall_seconds if clock == "wall" else each.cpu_seconds for each in durations]


def _ratios(own: Sequence[float], others: Sequence[float]) -> list[float]:
    return [mine / other for mine, other in zip(own, others, strict=True)]


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    return quartiles[2] - quartiles[0]

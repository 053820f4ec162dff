import io

from rich.console import Console

from benchmarks.measuring.load_figures import Figures
from benchmarks.measuring.load_report import Point, auto_choices, cells, comparisons
from benchmarks.measuring.load_tables import load_tables
from tests.benchmarks.measuring.load_records import figures

SHARED = figures(22, target_pass=0.1, target_passes=10, draft_pass=0.01, draft_passes=40)
MEASURED: dict[Point, list[Figures]] = {
    Point("split", 1, 0): [figures(10.0)],
    Point("split", 8, 4): [
        {
            **figures(33.0, draft_tokens=4, target_pass=0.1, draft_pass=0.01, busy=0.955),
            "ttft_seconds_p50": 0.4,
            "ttft_seconds_p99": 1.5,
            "share_within_goals": 0.75,
        }
    ],
    Point("split", 8, None): [figures(32.0)],
    Point("colocated", 8, 4): [SHARED],
}


def rendered(*, is_simulated: bool) -> str:
    console = Console(file=io.StringIO(), width=200)
    found = cells(MEASURED), auto_choices(MEASURED), comparisons(MEASURED)
    for table in load_tables(*found, is_simulated=is_simulated):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_row_says_what_was_measured_and_a_dash_what_was_not() -> None:
    rows = [line.split() for line in rendered(is_simulated=False).splitlines()]
    dash = "–"
    start = ["8", "4", "33.0", dash, dash, dash, "75%", "400/1500", f"{dash}/{dash}"]
    assert [*start, dash, dash, dash, "96%", dash] in rows
    assert ["8", "4", "1.50", "1.40", "107%", "1.40", "107%", "96%"] in rows
    assert ["split", "8", "4", "0.97", dash] in rows


def test_each_side_has_its_table() -> None:
    text = rendered(is_simulated=False)
    assert "Load, split" in text
    assert "Load, colocated" in text
    assert "sim" not in text.lower()


def test_a_simulation_says_so_over_every_figure() -> None:
    lines = rendered(is_simulated=True).splitlines()
    titles = [line for line in lines if "Load," in line or "K chosen" in line or "Split against" in line]
    assert len(titles) == 4
    assert all("SIMULATED: " in title for title in titles)
    # Fourteen columns of which two are places, of both sides; eight with two; five with two.
    assert sum(line.split().count("sim.") for line in lines) == 2 * 12 + 6 + 3

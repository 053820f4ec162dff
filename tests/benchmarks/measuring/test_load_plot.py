import sys
from pathlib import Path

import numpy
import pytest
from matplotlib.figure import Figure

from benchmarks.measuring import load_plot
from benchmarks.measuring.load_figures import Figures
from benchmarks.measuring.load_plot import PlotError, check_plotting, save_load_plot
from benchmarks.measuring.load_report import Point, cells, comparisons
from tests.benchmarks.measuring.load_records import figures

SHARED = figures(22, target_pass=0.1, target_passes=10, draft_pass=0.01, draft_passes=40)
MEASURED: dict[Point, list[Figures]] = {
    **{Point("split", n, 4): [figures(10.0 * n, draft_tokens=4, target_pass=0.1, draft_pass=0.01)] for n in (1, 8)},
    **{Point("colocated", n, 4): [SHARED] for n in (1, 8)},
}


@pytest.mark.parametrize("is_simulated", [False, True])
def test_a_picture_of_a_simulation_says_so_on_every_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_simulated: bool
) -> None:
    saved: list[Figure] = []
    save = Figure.savefig

    def note(self: Figure, *args: object, **kwargs: object) -> None:
        saved.append(self)
        save(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", note)
    path = tmp_path / "p.png"
    save_load_plot(path, cells(MEASURED), comparisons(MEASURED), title="t", is_simulated=is_simulated)
    assert path.read_bytes().startswith(b"\x89PNG")
    (figure,) = saved
    assert len(figure.axes) == 5
    assert all(axes.get_ylabel().startswith("simulated ") is is_simulated for axes in figure.axes)
    assert figure.get_suptitle() == ("SIMULATED: t" if is_simulated else "t")
    assert [float(y) for y in numpy.asarray(figure.axes[0].lines[0].get_ydata())] == [10, 80]


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotError, match=r"specdec\[bench\]"):
        load_plot.check_plotting()
    monkeypatch.undo()
    check_plotting()

"""The walk over the grid, with benches that measure nothing."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks.deployment.pass_log import Pass
from benchmarks.deployment.placement import NOT_PINNED
from benchmarks.deployment.services import Deployment
from benchmarks.measuring import load_grid
from benchmarks.measuring.load_figures import Goals, LoadWindow
from benchmarks.measuring.load_grid import LoadGrid, Result
from benchmarks.measuring.load_report import Point
from benchmarks.measuring.load_settings import LoadSettings
from benchmarks.measuring.prompts import Prompt
from benchmarks.simulation.profile import DeviceModel, DeviceProfile

SETTINGS = LoadSettings(
    num_clients=(1, 4),
    num_draft_tokens=(0, None),
    sides=("split", "colocated"),
    repeats=2,
    warm_up_seconds=0.5,
    duration_seconds=2.0,
    max_new_tokens=8,
    model="m",
    drafter="ngram",
    draft_model=None,
    is_cold=True,
    temperature=0.0,
    seed=0,
    goals=Goals(1, 1),
    num_threads=1,
    device="cpu",
    dtype="auto",
    max_batch_rows=None,
    profile=None,
    time_scale=None,
    acceptance=None,
)
PROFILE = DeviceProfile(name="p", target=DeviceModel(fixed_seconds=0.01), draft=DeviceModel(fixed_seconds=0.001))
# A pass that computes four times as long as it should.
SLOW = Pass(0.0, 0.04, 0.04, 0.01, 0.04, 0.04, 0.0, 4, 4)


class Recorded:
    """Stands in for deployments and what is measured on them."""

    def __init__(self) -> None:
        self.deployments: list[Deployment] = []
        self.windows: list[tuple[str, int, int | None, float]] = []

    @asynccontextmanager
    async def load_bench(self, deployment: Deployment, *_: object) -> AsyncIterator[FakeBench]:
        self.deployments.append(deployment)
        yield FakeBench(self, deployment.side)


class FakeBench:
    def __init__(self, recorded: Recorded, side: str) -> None:
        self._recorded = recorded
        self._side = side

    async def measure(
        self, num_clients: int, num_draft_tokens: int | None, *, warm_up_seconds: float, duration_seconds: float
    ) -> LoadWindow:
        self._recorded.windows.append((self._side, num_clients, num_draft_tokens, duration_seconds))
        return LoadWindow(0.0, 1.0, [], [SLOW], [], {"orchestrator": 0.0})


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr(load_grid, "load_bench", recorded.load_bench)
    return recorded


async def walk(settings: LoadSettings) -> Result:
    with Progress(console=Console(file=io.StringIO())) as progress:
        return await LoadGrid(settings, [Prompt("1", "any", "text")], NOT_PINNED).run(progress)


async def test_sides_and_ks_take_turns_and_the_next_repeat_goes_backwards(recorded: Recorded) -> None:
    result = await walk(SETTINGS)
    warm_up, windows = recorded.windows[:2], [window[:3] for window in recorded.windows[2:]]
    assert [window[0] for window in warm_up] == ["split", "colocated"]
    assert windows[:4] == [("split", 1, 0), ("colocated", 1, 0), ("split", 1, None), ("colocated", 1, None)]
    assert len(windows) == 16
    assert windows[8:] == windows[7::-1]
    assert {window[3] for window in recorded.windows[2:]} == {2.0}
    assert {len(repeats) for repeats in result.measured.values()} == {2}
    assert set(result.measured) == {
        Point(side, n, k) for side in ("split", "colocated") for n in (1, 4) for k in (0, None)
    }
    assert result.time_scale == 1


async def test_a_simulation_is_tried_at_full_speed_and_then_run_slower(recorded: Recorded) -> None:
    settings = replace(SETTINGS, model=None, drafter=None, profile=PROFILE, num_draft_tokens=(0, 3), sides=("split",))
    result = await walk(settings)
    trial, real = recorded.deployments
    assert recorded.windows[0][:3] == ("split", 4, 3), "the largest load"
    assert result.time_scale == pytest.approx(8)
    assert '"time_scale":1.0' in trial.specs[0].command[-1]
    assert '"time_scale":8.0' in real.specs[0].command[-1]
    # One pass can take all windows; and what is slow on purpose does not run into deadlines.
    assert '"--max-batch-rows=512"' in real.specs[0].command[-1]
    assert "--round-timeout-seconds=600" in real.specs[-1].command
    figures = result.measured[Point("split", 4, 0)][0]
    assert figures["target_pass_seconds_mean"] == pytest.approx(0.04 / 8)


async def test_a_given_time_scale_needs_no_trial(recorded: Recorded) -> None:
    settings = replace(SETTINGS, model=None, drafter=None, profile=PROFILE, time_scale=3.0)
    assert (await walk(settings)).time_scale == 3
    assert [deployment.side for deployment in recorded.deployments] == ["split", "colocated"]


async def test_a_real_pair_is_left_at_its_own_limits(recorded: Recorded) -> None:
    await walk(SETTINGS)
    target, _, orchestrator = recorded.deployments[0].specs
    assert "--max-num-sequences=8" in target.command[-1]
    assert "--max-batch-rows" not in target.command[-1]
    assert "--max-concurrent-requests=8" in orchestrator.command
    assert not any(argument.startswith("--round-timeout") for argument in orchestrator.command)

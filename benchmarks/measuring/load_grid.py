"""Every point of the grid of `benchmarks.load`, measured in turns."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import Progress

from benchmarks.deployment.placement import Placement
from benchmarks.deployment.services import DeploymentPlan, Side
from benchmarks.measuring.load_bench import LoadBench, RequestMaker, load_bench
from benchmarks.measuring.load_figures import Figures, window_figures
from benchmarks.measuring.load_report import Point
from benchmarks.measuring.load_settings import LoadSettings
from benchmarks.measuring.output_check import OutputCheck
from benchmarks.measuring.prompts import Prompt
from benchmarks.simulation.scaling import time_scale
from benchmarks.simulation.stand_in import save_stand_in

_TRIAL_SECONDS = 3.0


@dataclass(frozen=True)
class Result:
    """What was measured."""

    measured: dict[Point, list[Figures]]
    outputs: OutputCheck
    placement: Placement
    time_scale: float


class LoadGrid:
    """Walks the grid."""

    def __init__(self, settings: LoadSettings, prompts: Sequence[Prompt], placement: Placement) -> None:
        self._settings = settings
        self._placement = placement
        self._num_prompts = len(prompts)
        self._outputs = OutputCheck()
        self._make_request = RequestMaker(
            prompts,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            seed=settings.seed,
            ignores_stops=settings.is_simulated,
            is_cold=settings.is_cold,
        )

    async def run(self, progress: Progress) -> Result:
        """Measure every point, `repeats` times.

        Raises:
            ServiceFailedError: a service did not start.
            grpc.aio.AioRpcError: a generation failed.
        """
        settings = self._settings
        points = [
            (n, k, side) for n in settings.num_clients for k in settings.num_draft_tokens for side in settings.sides
        ]
        task = progress.add_task("starting the services", total=settings.repeats * len(points))
        if self._placement.rest:
            os.sched_setaffinity(0, self._placement.rest)
        async with AsyncExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specdec-load-")))
            plan = settings.plan(directory, self._placement, self._stand_in(directory))
            if settings.is_simulated and settings.time_scale is None:
                progress.update(task, description="finding the time scale")
                plan = replace(plan, time_scale=await self._find_time_scale(plan))
            benches = {side: await stack.enter_async_context(self._bench(plan, side)) for side in settings.sides}
            measured: dict[Point, list[Figures]] = {
                Point(side, n, k): [] for side in settings.sides for n, k, other in points if other == side
            }
            progress.update(task, description="warming up")
            for bench in benches.values():
                await bench.measure(1, None, warm_up_seconds=0, duration_seconds=settings.warm_up_seconds)
            for repeat in range(settings.repeats):
                # What comes first in one repeat does not in the next.
                for n, k, side in points if repeat % 2 == 0 else reversed(points):
                    point = Point(side, n, k)
                    progress.update(task, description=f"{side} N={n} K={point.k}")
                    measured[point].append(await self._measure(benches[side], point, plan.time_scale))
                    progress.advance(task)
        return Result(measured, self._outputs, self._placement, plan.time_scale)

    async def _measure(self, bench: LoadBench, point: Point, scale: float) -> Figures:
        window = await bench.measure(
            point.num_clients,
            point.num_draft_tokens,
            warm_up_seconds=self._settings.warm_up_seconds,
            duration_seconds=self._settings.duration_seconds,
        )
        return window_figures(window, self._settings.goals, time_scale=scale)

    async def _find_time_scale(self, plan: DeploymentPlan) -> float:
        """Try the largest load at full speed."""
        largest = max((k for k in self._settings.num_draft_tokens if k is not None), default=None)
        async with self._bench(plan, "split") as bench:
            window = await bench.measure(
                max(self._settings.num_clients), largest, warm_up_seconds=1, duration_seconds=_TRIAL_SECONDS
            )
        cpu_seconds = sum(window.cpu_seconds.values())
        return time_scale(window.target_passes, window.draft_passes, cpu_seconds, len(os.sched_getaffinity(0)))

    def _bench(self, plan: DeploymentPlan, side: Side) -> AbstractAsyncContextManager[LoadBench]:
        return load_bench(plan.deployment(side), self._make_request, self._num_prompts, self._outputs)

    def _stand_in(self, directory: Path) -> Path | None:
        return save_stand_in(directory / "stand-in") if self._settings.model is None else None

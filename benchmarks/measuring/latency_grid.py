"""Every place of the grid of `benchmarks.latency`, in turns."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.deployment.services import DeploymentPlan
from benchmarks.measuring.latency_bench import LatencyBench, latency_bench
from benchmarks.measuring.latency_cell import (
    Figures,
    Generation,
    Place,
    cell,
    draft_network_microseconds,
    target_network_microseconds,
    waiting_microseconds,
)
from benchmarks.measuring.prompts import Prompt
from benchmarks.simulation.acceptance_dial import BLOCK_POSITIONS
from benchmarks.simulation.profile import DeviceModel, DeviceProfile
from benchmarks.simulation.stand_in import save_stand_in
from specdec.cli.drafter_kind import DrafterKind
from specdec.cli.three_services import ThreeServices
from specdec.planning.acceptance import Acceptance
from specdec.planning.costs import Costs
from specdec.planning.one_client import best_split
from specdec.planning.pass_costs import PassCosts
from specdec.planning.pipeline import Pipeline, PipelineMode
from specdec.v1 import draft_pb2, generation_pb2, sampling_pb2

MAX_DRAFT_TOKENS = 16
_PROMPT_TOKENS = BLOCK_POSITIONS - 1
"""Of a simulation: decoding begins where a block of the dial does, behind the prefill's token."""
_WARM_UP_TOKENS = 80
_SPARE_STEPS = 2
"""Of drafting ahead, besides one for each token: the first runs the last token of the window before, and messages take
a moment. The formula knows of neither."""
_FIRST_PROMPT_ID = 40
"""Of a stand-in's tokens; what they say does not matter."""


@dataclass(frozen=True)
class SimulatedDevices:
    """What is padded to what, and the drafter's luck."""

    target_seconds: float
    draft_seconds: float
    acceptances: tuple[float, ...]
    time_scale: float


@dataclass(frozen=True)
class RealPair:
    """Models as they are; None: the services' defaults."""

    model: str | None
    drafter: DrafterKind | None
    draft_model: str | None
    prompts: tuple[Prompt, ...]
    """One for each repeat, in turns."""


@dataclass(frozen=True)
class LatencySettings:
    """The grid."""

    pipelines: tuple[PipelineMode, ...]
    rtts_seconds: tuple[float, ...]
    num_draft_tokens: int | None
    """K; None: auto, chosen by the orchestrator."""
    is_planned: bool
    """K is the one that the planner thinks best for each place. Of simulated devices only: what others take is not
    known before."""
    max_new_tokens: int
    repeats: int
    num_threads: int


class LatencyGrid:
    """Walks the grid of one pair.

    Args:
        settings: of the grid.
        pair: simulated or real.
    """

    def __init__(self, settings: LatencySettings, pair: SimulatedDevices | RealPair) -> None:
        self._settings = settings
        self._pair = pair

    @property
    def num_measurements(self) -> int:
        """Generations that it takes."""
        acceptances = self._pair.acceptances if isinstance(self._pair, SimulatedDevices) else (None,)
        places = len(acceptances) * len(self._settings.rtts_seconds) * len(self._settings.pipelines)
        return places * self._settings.repeats

    async def run(self, progress: Progress) -> list[dict[str, Any]]:
        """The cells of `latency_cell.cell`.

        Raises:
            ServiceFailedError: a service did not start.
            RelayFailedError: nor did the relay.
            grpc.aio.AioRpcError: a generation failed.
        """
        pair = self._pair
        acceptances = pair.acceptances if isinstance(pair, SimulatedDevices) else (None,)
        cells = []
        task = progress.add_task("starting the services", total=self.num_measurements)
        for acceptance in acceptances:
            async with AsyncExitStack() as stack:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specdec-latency-")))
                plan = self._plan(directory, acceptance)
                bench = await stack.enter_async_context(latency_bench(plan, self._settings.pipelines))
                places = [
                    self._place(pipeline, rtt, acceptance)
                    for rtt in self._settings.rtts_seconds
                    for pipeline in self._settings.pipelines
                ]
                found: dict[Place, list[Generation]] = {place: [] for place in places}
                await self._warm_up(bench)
                for repeat in range(self._settings.repeats):
                    # What comes first in one repeat does not in the next.
                    for place in places if repeat % 2 == 0 else reversed(places):
                        progress.update(task, description=f"{place.pipeline} {1e3 * place.rtt_seconds:g} ms")
                        request = self._request(repeat, place.num_draft_tokens, self._settings.max_new_tokens)
                        found[place].append(await bench.generate(place.pipeline, place.rtt_seconds, request))
                        progress.advance(task)
                cells += [self._cell(place, generations) for place, generations in found.items()]
        return cells

    async def _warm_up(self, bench: LatencyBench) -> None:
        for pipeline in self._settings.pipelines:
            await bench.generate(pipeline, 0.0, self._request(0, 2, _WARM_UP_TOKENS))

    def _place(self, pipeline: PipelineMode, rtt_seconds: float, acceptance: float | None) -> Place:
        k = self._settings.num_draft_tokens
        if self._settings.is_planned and isinstance(self._pair, SimulatedDevices) and acceptance is not None:
            rates = Acceptance((acceptance,))
            costs = _costs(self._pair.draft_seconds, self._pair.target_seconds, rtt_seconds)
            most = min(MAX_DRAFT_TOKENS, self._most_hidden(pipeline, rtt_seconds, self._pair))
            k = best_split(costs, rates, Pipeline(pipeline, acceptance), most).num_draft_tokens
        return Place(pipeline, rtt_seconds, acceptance, k)

    @staticmethod
    def _most_hidden(pipeline: PipelineMode, rtt_seconds: float, devices: SimulatedDevices) -> int:
        """Draft tokens for which there is time before the window is asked for, or the target could begin with it."""
        if pipeline == "off":
            return MAX_DRAFT_TOKENS
        hiding = devices.target_seconds + (rtt_seconds if pipeline == "ahead" else 0.0)
        return max(1, int(hiding / devices.draft_seconds + 1e-9) - _SPARE_STEPS)

    def _cell(self, place: Place, generations: list[Generation]) -> dict[str, Any]:
        pair = self._pair
        if isinstance(pair, SimulatedDevices) and place.acceptance is not None:
            figures = Figures.of(generations, pair.time_scale)
            costs = _costs(pair.draft_seconds, pair.target_seconds, place.rtt_seconds)
            required = place.required(pair.target_seconds, pair.draft_seconds)
            return cell(place, figures, costs, Acceptance((place.acceptance,)), required=required)
        figures = Figures.of(generations, 1.0)
        rounds = [report for generation in generations for report in generation.rounds]
        length = max(1, round(figures.mean_draft_tokens))
        acceptance = Acceptance.from_mean_lengths({length: min(figures.mean_acceptance_length, length + 1)})
        # With other K its acceptance would be another one, which nobody has measured.
        return cell(place, figures, measured_costs(rounds), acceptance, required=None, num_draft_tokens=length)

    def _request(self, repeat: int, num_draft_tokens: int | None, most: int) -> generation_pb2.GenerateRequest:
        """A prompt that is the same everywhere within a repeat."""
        request = generation_pb2.GenerateRequest(
            sampling=sampling_pb2.SamplingParams(temperature=0.0, seed=0, ignore_eos=True),
            max_new_tokens=most,
            num_draft_tokens=num_draft_tokens,
        )
        if isinstance(self._pair, SimulatedDevices):
            request.token_ids.ids.extend(range(_FIRST_PROMPT_ID, _FIRST_PROMPT_ID + _PROMPT_TOKENS))
        else:
            prompts = self._pair.prompts
            request.chat.messages.add(role="user", content=prompts[repeat % len(prompts)].text)
        return request

    def _plan(self, directory: Path, acceptance: float | None) -> DeploymentPlan:
        pair, threads = self._pair, self._settings.num_threads
        environment = {"OMP_NUM_THREADS": str(threads)}
        if isinstance(pair, RealPair):
            services = ThreeServices(
                model=pair.model,
                drafter=pair.drafter,
                draft_model=pair.draft_model,
                num_threads=threads,
                environment=environment,
                drain_seconds=2.0,
            )
            return DeploymentPlan(services, directory)
        model = str(save_stand_in(directory / "stand-in"))
        services = ThreeServices(
            model=model,
            drafter="model",
            draft_model=model,
            device="cpu",
            num_threads=threads,
            environment=environment,
            drain_seconds=2.0,
            # Slow motion is no failure.
            orchestrator_arguments=("--draft-timeout-seconds=300", "--round-timeout-seconds=600"),
        )
        profile = DeviceProfile(
            name="constant",
            target=DeviceModel(fixed_seconds=pair.target_seconds),
            draft=DeviceModel(fixed_seconds=pair.draft_seconds),
        )
        return DeploymentPlan(services, directory, profile=profile, time_scale=pair.time_scale, acceptance=acceptance)


def measured_costs(rounds: Sequence[generation_pb2.RoundReport]) -> Costs:
    """What the parts of these rounds took; means, which is what they add up to.

    Drafting is that of rounds which had to draft, by the token: of windows that lookup found, or that are trees, it is
    not a step for each. Networks are what services do not account for of the waits for them, so that gRPC and the relay
    are in them. Of what was hidden there was no wait, so rounds that were under way before they began say nothing of
    the target's.
    """
    drafted = [
        report for report in rounds if report.num_draft_tokens and report.draft_ahead != draft_pb2.AHEAD_OUTCOME_HIT
    ]
    num_tokens = sum(report.num_draft_tokens for report in drafted)
    drafting = sum(report.draft.compute_microseconds for report in drafted) / max(num_tokens, 1)
    to_target = _mean(target_network_microseconds(report) for report in rounds if not report.is_candidate)
    to_drafter = _mean(draft_network_microseconds(report) for report in rounds if report.draft_wait_microseconds)
    return Costs(
        draft=PassCosts.constant(drafting / 1e6),
        verify=PassCosts.constant(_mean(report.verify.compute_microseconds for report in rounds) / 1e6),
        rtt_seconds=to_target / 1e6,
        draft_rtt_seconds=to_drafter / 1e6,
        overhead_seconds=_mean(map(waiting_microseconds, rounds)) / 1e6,
    )


def _costs(draft_seconds: float, verify_seconds: float, rtt_seconds: float) -> Costs:
    """Without overhead: whatever a round takes besides shows as a difference to the formula."""
    return Costs(
        draft=PassCosts.constant(draft_seconds), verify=PassCosts.constant(verify_seconds), rtt_seconds=rtt_seconds
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.fmean(found) if found else 0.0

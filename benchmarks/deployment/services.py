"""The three services as a benchmark starts them: each in its own process, or draft and target in one."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.deployment.metered_options import ProcessOptions, ServiceOptions
from benchmarks.deployment.placement import NOT_PINNED, Placement
from benchmarks.simulation.profile import DeviceModel, DeviceProfile
from specdec.cli.service_group import ServiceSpec
from specdec.cli.three_services import ThreeServices

Side = Literal["split", "colocated"]


@dataclass(frozen=True)
class Deployment:
    """What to start, and where the forward passes are logged."""

    side: Side
    specs: tuple[ServiceSpec, ...]
    target_log: Path
    draft_log: Path


@dataclass(frozen=True)
class DeploymentPlan:
    """Makes deployments that differ in nothing but their side."""

    services: ThreeServices
    directory: Path
    """For the logs."""
    placement: Placement = NOT_PINNED
    profile: DeviceProfile | None = None
    """What is simulated; None: nothing."""
    time_scale: float = 1.0
    acceptance: float | None = None
    """Of a drafter that has the target's own weights; None: the drafter is what it is."""

    def deployment(self, side: Side) -> Deployment:
        """Specs with ports of their own; draft and target of the co-located side are at one address.

        Raises:
            ValueError: co-located without a drafter.
            OSError: a port is in use.
        """
        target, *drafts, orchestrator = self.services.specs()
        target_log, draft_log = (self.directory / f"{side}-{name}.passes" for name in ("target", "draft"))
        profile = self.profile
        target_options = self._options(target, target_log, profile.target if profile is not None else None)
        orchestrator = _pinned(orchestrator, self.placement.rest)
        if side == "split":
            parts = [_metered(target, ProcessOptions(target=target_options), self.placement.target)]
            for draft in drafts:
                device = profile.draft if profile is not None else None
                options = self._options(draft, draft_log, device, self.acceptance)
                parts.append(_metered(draft, ProcessOptions(draft=options), self.placement.draft))
            return Deployment(side, (*parts, orchestrator), target_log, draft_log)
        if not drafts:
            raise ValueError("there is no drafter to put beside the target")
        device = profile.colocated_draft if profile is not None else None
        draft_options = self._options(drafts[0], draft_log, device, self.acceptance)
        both = _metered(target, ProcessOptions(target=target_options, draft=draft_options), self.placement.target)
        command = tuple(
            f"--draft={target.address}" if argument.startswith("--draft=") else argument
            for argument in orchestrator.command
        )
        return Deployment(side, (both, replace(orchestrator, command=command)), target_log, draft_log)

    def _options(
        self, spec: ServiceSpec, log: Path, device: DeviceModel | None, acceptance: float | None = None
    ) -> ServiceOptions:
        # The command is that of `python -m MODULE FLAGS`.
        return ServiceOptions(
            flags=list(spec.command[3:]), log=log, device=device, time_scale=self.time_scale, acceptance=acceptance
        )


def _metered(spec: ServiceSpec, options: ProcessOptions, cpus: frozenset[int]) -> ServiceSpec:
    command = (sys.executable, "-m", "benchmarks.deployment.metered", options.model_dump_json())
    return _pinned(replace(spec, command=command), cpus)


def _pinned(spec: ServiceSpec, cpus: frozenset[int]) -> ServiceSpec:
    if not cpus:
        return spec
    numbers = ",".join(map(str, sorted(cpus)))
    return replace(spec, command=(sys.executable, "-m", "benchmarks.deployment.pinned", numbers, *spec.command))

"""What `benchmarks.load` measures, and the deployments that follow from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.deployment.placement import Placement
from benchmarks.deployment.services import DeploymentPlan, Side
from benchmarks.measuring.load_figures import Goals
from benchmarks.simulation.profile import DeviceProfile
from specdec.cli.drafter_kind import DrafterKind
from specdec.cli.three_services import ThreeServices

_DRAIN_SECONDS = 2.0
_SPARE_SEQUENCES = 2
"""Room for so many times the clients: requests that were cut off may still be closing while the next ones open."""
_LONGEST_AUTO_WINDOW = 8
"""Of K = auto, for what a pass must hold."""


@dataclass(frozen=True)
class LoadSettings:
    """The grid and what is the same at every point of it."""

    num_clients: tuple[int, ...]
    num_draft_tokens: tuple[int | None, ...]
    """K; None: auto."""
    sides: tuple[Side, ...]
    repeats: int
    warm_up_seconds: float
    duration_seconds: float
    """Of each window; real seconds."""
    max_new_tokens: int
    model: str | None
    """None: the stand-in of a simulation."""
    drafter: DrafterKind | None
    draft_model: str | None
    is_cold: bool
    """No request finds a prefix of another."""
    temperature: float
    seed: int
    goals: Goals
    num_threads: int
    device: str
    dtype: str
    max_batch_rows: int | None
    profile: DeviceProfile | None
    """What is simulated; None: nothing."""
    time_scale: float | None
    """None: found by a trial."""
    acceptance: float | None
    """Of a made-up drafter; None: the drafter is what it is."""

    @property
    def is_simulated(self) -> bool:
        """Whether the devices are made up."""
        return self.profile is not None

    def plan(self, directory: Path, placement: Placement, stand_in: Path | None) -> DeploymentPlan:
        """The deployments, with a simulation at its given factor, or else at 1.

        Args:
            directory: for logs.
            placement: of the processes.
            stand_in: model that takes the place of a target that is not named, and of its drafter.
        """
        most = max(self.num_clients)
        target = [f"--max-num-sequences={_SPARE_SEQUENCES * most}"]
        orchestrator = [f"--max-concurrent-requests={_SPARE_SEQUENCES * most}"]
        rows = self.max_batch_rows
        if self.is_simulated:
            # A pass takes all windows at once, as on the device meant; and slow motion is no failure.
            longest = max(_LONGEST_AUTO_WINDOW if k is None else k for k in self.num_draft_tokens)
            rows = rows or max(512, most * (longest + 1))
            orchestrator += ["--draft-timeout-seconds=300", "--round-timeout-seconds=600"]
        if rows is not None:
            target.append(f"--max-batch-rows={rows}")
        services = ThreeServices(
            model=self.model if stand_in is None else str(stand_in),
            drafter=self.drafter if stand_in is None else "model",
            draft_model=self.draft_model if stand_in is None else str(stand_in),
            num_draft_tokens="auto",
            device=self.device,
            dtype=self.dtype,
            num_threads=self.num_threads,
            drain_seconds=_DRAIN_SECONDS,
            target_arguments=tuple(target),
            draft_arguments=tuple(target),
            orchestrator_arguments=tuple(orchestrator),
            environment={"OMP_NUM_THREADS": str(self.num_threads)},
        )
        return DeploymentPlan(services, directory, placement, self.profile, self.time_scale or 1.0, self.acceptance)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, without the profile."""
        values = asdict(self)
        del values["profile"]
        return values

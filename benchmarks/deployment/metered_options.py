"""What `benchmarks.deployment.metered` is told; read without torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from benchmarks.simulation.profile import DeviceModel


class ServiceOptions(BaseModel):
    """How one service is run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flags: list[str]
    """Of the service itself."""
    log: Path
    """File for its forward passes."""
    device: DeviceModel | None = None
    """What is simulated; None: nothing."""
    time_scale: float = 1.0
    acceptance: float | None = None
    """See `AcceptanceDial`; None: the drafter is what it is."""


class ProcessOptions(BaseModel):
    """What one process runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: ServiceOptions | None = None
    draft: ServiceOptions | None = None

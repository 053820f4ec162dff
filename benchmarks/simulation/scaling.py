"""How much slower than life a simulation has to run, so that real computing does not show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.deployment.pass_log import Pass
from benchmarks.measuring.load_figures import percentile

_ROOM = 2.0
"""What is real may take this part of what is simulated: one half."""


def time_scale(target_passes: Sequence[Pass], draft_passes: Sequence[Pass], cpu_seconds: float, num_cpus: int) -> float:
    """The smallest factor, of one digit, at which the machine keeps up with the simulated devices, and at least 1.

    Two things must fit: the real forward pass into the simulated one, and the work of all processes (services and
    clients) into the time that the target is busy, on the CPUs that there are.

    Args:
        target_passes: of a trial at factor 1 under the largest load.
        draft_passes: of the same.
        cpu_seconds: of all processes in the trial.
        num_cpus: of the machine.
    """
    forward = [
        percentile((entry.computing_seconds / entry.planned_seconds for entry in passes if entry.planned_seconds), 0.9)
        for passes in (target_passes, draft_passes)
    ]
    planned = sum(entry.planned_seconds for entry in target_passes)
    work = cpu_seconds / num_cpus / planned if planned else 0.0
    ratios = [_ROOM * ratio for ratio in (*forward, work) if ratio is not None]
    return _round_up(max([1.0, *ratios]))


def _round_up(value: float) -> float:
    """To one digit: 1.2 gives 2, 34 gives 40."""
    unit = 10.0 ** math.floor(math.log10(value))
    return math.ceil(value / unit - 1e-9) * unit

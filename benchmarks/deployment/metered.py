"""The target service, the draft service, or both in one process, with every forward pass metered.

    python -m benchmarks.deployment.metered OPTIONS

OPTIONS is the JSON of `ProcessOptions`. A single service is the one that `python -m target_service` starts, with the
same flags; only the class that runs its model is another one. Both together share an event loop and a device on which
one forward pass runs at a time, in the order in which they were asked for; each keeps the thread of its own engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import draft_service.__main__
import draft_service.drafters.making
import target_service.__main__
import target_service.measuring
import target_service.service
from benchmarks.deployment.colocated import ColocatedServices
from benchmarks.deployment.device_turns import DeviceTurns
from benchmarks.deployment.meter import PassMeter, metered_making, metered_runner
from benchmarks.deployment.metered_options import ProcessOptions, ServiceOptions
from benchmarks.deployment.pass_log import PassLog
from benchmarks.simulation.acceptance_dial import AcceptanceDial
from benchmarks.simulation.clock import sharpen_timers
from draft_service.feature_runner import make_runner
from specdec.serving.host import Service
from specdec.serving.process import run
from specdec.serving.server_security import ServerSecurity
from specdec.settings import ServiceSettings


def main() -> int:
    """Run until told to stop; returns the exit status."""
    options = ProcessOptions.model_validate_json(sys.argv[1])
    turns = DeviceTurns()
    if any(service is not None and service.device is not None for service in (options.target, options.draft)):
        sharpen_timers()
    if options.target is not None:
        _replace(target_service.service, "ModelRunner", metered_runner(_meter(options.target, turns)))
        # In slow motion, what the target measures of its passes when it starts takes as much longer.
        budget = options.target.time_scale * target_service.measuring._BUDGET_SECONDS
        _replace(target_service.measuring, "_BUDGET_SECONDS", budget)
    if options.draft is not None:
        metered = metered_making(_meter(options.draft, turns), make_runner)
        _replace(draft_service.drafters.making, "make_runner", metered)
    if options.target is not None and options.draft is not None:
        return _run_both(options.target, options.draft)
    if options.target is not None:
        return _main(target_service.__main__, options.target)
    if options.draft is not None:
        return _main(draft_service.__main__, options.draft)
    raise SystemExit("nothing to run")


def _meter(options: ServiceOptions, turns: DeviceTurns) -> PassMeter:
    """The meter of a service."""
    dial = None if options.acceptance is None else AcceptanceDial(options.acceptance)
    return PassMeter(PassLog(options.log), turns, device=options.device, time_scale=options.time_scale, dial=dial)


def _main(module: ModuleType, options: ServiceOptions) -> int:
    """What `python -m` does with the flags given."""
    sys.argv[1:] = options.flags
    status: int = module.main()
    return status


def _run_both(target: ServiceOptions, draft: ServiceOptions) -> int:
    """Both services at the address of the target's flags."""
    started: list[tuple[Callable[[], Service], ServiceSettings, tuple[type[Exception], ...]]] = []

    def note(
        make_service: Callable[[], Service],
        settings: ServiceSettings,
        *,
        name: str,
        expected_errors: tuple[type[Exception], ...] = (),
        make_security: Callable[[], ServerSecurity] | None = None,
    ) -> int:
        started.append((make_service, settings, expected_errors))
        return 0

    # Whatever the two programs would have run, made by themselves, is run together.
    for module, options in ((target_service.__main__, target), (draft_service.__main__, draft)):
        _replace(module, "run", note)
        _main(module, options)
    (make_target, settings, expected), (make_draft, _, also_expected) = started
    return run(
        lambda: ColocatedServices(make_target(), make_draft()),
        settings,
        name="target",
        expected_errors=(*expected, *also_expected),
    )


def _replace(module: ModuleType, name: str, value: Any) -> None:
    """Put something in the place of what a module goes by; a name that is not there any more is an error."""
    getattr(module, name)
    setattr(module, name, value)


if __name__ == "__main__":
    sys.exit(main())

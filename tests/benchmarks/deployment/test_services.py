import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.deployment.metered_options import ProcessOptions
from benchmarks.deployment.placement import Placement
from benchmarks.deployment.services import DeploymentPlan
from benchmarks.simulation.profile import DeviceModel, DeviceProfile
from specdec.cli.service_group import ServiceSpec
from specdec.cli.three_services import ThreeServices

TARGET, DRAFT, BESIDE = (DeviceModel(fixed_seconds=seconds) for seconds in (0.03, 0.003, 0.001))
PLACEMENT = Placement(frozenset({0}), frozenset({1}), frozenset({2, 3}))


def plan(directory: Path) -> DeploymentPlan:
    return DeploymentPlan(
        ThreeServices(model="m", drafter="ngram", target_arguments=("--max-batch-rows=9",)),
        directory,
        PLACEMENT,
        DeviceProfile(name="p", target=TARGET, draft=DRAFT, draft_on_target_device=BESIDE),
        time_scale=4,
        acceptance=0.5,
    )


def options_of(spec: ServiceSpec) -> ProcessOptions:
    return ProcessOptions.model_validate_json(spec.command[-1])


def test_split_services_have_their_own_processes_cpus_and_devices(tmp_path: Path) -> None:
    deployment = plan(tmp_path).deployment("split")
    target, draft, orchestrator = deployment.specs
    pinned = (sys.executable, "-m", "benchmarks.deployment.pinned")
    metered = (sys.executable, "-m", "benchmarks.deployment.metered")
    assert target.command[:7] == (*pinned, "0", *metered)
    assert draft.command[:7] == (*pinned, "1", *metered)
    assert orchestrator.command[:7] == (*pinned, "2,3", sys.executable, "-m", "orchestrator")
    assert options_of(target).draft is None
    assert options_of(draft).target is None
    options = options_of(target).target
    assert options is not None
    assert {"--model=m", "--max-batch-rows=9"} <= set(options.flags)
    assert f"--port={target.address.rpartition(':')[2]}" in options.flags
    assert (options.device, options.time_scale, options.acceptance) == (TARGET, 4, None)
    assert options.log == deployment.target_log
    drafting = options_of(draft).draft
    assert drafting is not None
    assert "--drafter=ngram" in drafting.flags
    assert (drafting.device, drafting.acceptance, drafting.log) == (DRAFT, 0.5, deployment.draft_log)


def test_colocated_services_are_one_process_at_one_address(tmp_path: Path) -> None:
    deployment = plan(tmp_path).deployment("colocated")
    both, orchestrator = deployment.specs
    assert both.command[3] == "0"
    options = options_of(both)
    assert options.target is not None
    assert options.draft is not None
    assert (options.target.device, options.draft.device) == (TARGET, BESIDE)
    assert f"--target={both.address}" in orchestrator.command
    assert f"--draft={both.address}" in orchestrator.command
    assert {deployment.target_log, deployment.draft_log}.isdisjoint(
        {(other := plan(tmp_path).deployment("split")).target_log, other.draft_log}
    )


def test_without_a_drafter_there_is_nothing_to_put_beside_the_target(tmp_path: Path) -> None:
    alone = replace(plan(tmp_path), services=ThreeServices(model="m", drafter="none"))
    assert [spec.name for spec in alone.deployment("split").specs] == ["target", "orchestrator"]
    with pytest.raises(ValueError, match="no drafter"):
        alone.deployment("colocated")


def test_without_cpus_and_profile_commands_are_bare(tmp_path: Path) -> None:
    target, _, orchestrator = DeploymentPlan(ThreeServices(model="m"), tmp_path).deployment("split").specs
    assert target.command[1:3] == ("-m", "benchmarks.deployment.metered")
    assert orchestrator.command[1:3] == ("-m", "orchestrator")
    options = options_of(target).target
    assert options is not None
    assert options.device is None

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from specdec.cli.ports import choose_ports
from specdec.cli.service_group import ServiceFailedError, ServiceGroup, ServiceSpec, is_serving
from specdec.serving.channel import open_channel
from tests.specdec.cli.conftest import ROOT

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


def specs(directory: Path, **modes: str) -> list[ServiceSpec]:
    packages = {"target": "target_service", "draft": "draft_service", "orchestrator": "orchestrator"}
    return [
        ServiceSpec(
            name,
            (sys.executable, str(directory / package / "__main__.py"), f"--port={port}"),
            f"127.0.0.1:{port}",
            {"PYTHONPATH": str(ROOT), f"FAKE_{name.upper()}": modes.get(name, "")},
        )
        for (name, package), port in zip(packages.items(), choose_ports([("127.0.0.1", 0)] * 3), strict=True)
    ]


async def serves(address: str) -> bool:
    async with open_channel(address, max_message_bytes=1024) as channel:
        return await is_serving(channel)


async def test_all_serve_inside_and_none_is_left_outside(fake_services: Path) -> None:
    ready: list[str] = []
    wanted = specs(fake_services)
    async with ServiceGroup(wanted, on_serving=lambda name, seconds: ready.append(name)) as group:
        assert sorted(ready) == ["draft", "orchestrator", "target"]
        assert group.address == wanted[-1].address
        assert [await serves(spec.address) for spec in wanted] == [True, True, True]
        pids = [group[spec.name].pid for spec in wanted]
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_the_last_one_is_drained_before_the_others(fake_services: Path) -> None:
    async with ServiceGroup(specs(fake_services)) as group:
        pass
    moments = {
        name: float(group[name].lines[-1].rpartition(" ")[2])  # seconds of the monotonic clock, "... drained at 5.123"
        for name in ("target", "draft", "orchestrator")
    }
    assert moments["orchestrator"] < min(moments["target"], moments["draft"])


async def test_one_that_ends_while_starting_ends_all(fake_services: Path) -> None:
    group = ServiceGroup(specs(fake_services, draft="fail", target="starting"))
    with pytest.raises(ServiceFailedError, match=r"(?s)draft ended with status 3; .*cannot load the model"):
        await group.__aenter__()
    assert not any(group[name].is_running for name in ("target", "draft", "orchestrator"))


async def test_one_that_is_never_ready_is_named(fake_services: Path) -> None:
    group = ServiceGroup(specs(fake_services, target="starting"), start_timeout_seconds=3)
    with pytest.raises(ServiceFailedError, match="not ready after 3 seconds: target"):
        await group.__aenter__()
    assert not group["target"].is_running


async def test_one_that_dies_later_is_noticed(fake_services: Path) -> None:
    async with ServiceGroup(specs(fake_services)) as group:
        failure = asyncio.create_task(group.first_failure())
        await asyncio.sleep(0.1)
        assert not failure.done()
        group["draft"].kill()
        with pytest.raises(ServiceFailedError, match="draft was killed by SIGKILL"):
            await asyncio.wait_for(failure, 10)


async def test_one_can_be_started_again_at_its_address(fake_services: Path) -> None:
    async with ServiceGroup(specs(fake_services)) as group:
        first = group["target"].pid
        await group.restart("target")
        assert group["target"].pid != first
        assert await serves(group.specs[0].address)


async def test_a_paused_one_does_not_serve(fake_services: Path) -> None:
    async with ServiceGroup(specs(fake_services)) as group:
        group["target"].pause()
        assert not await serves(group.specs[0].address)
        group["target"].resume()
        assert await serves(group.specs[0].address)


async def test_cancelling_while_it_drains_kills(fake_services: Path, eventually: Eventually) -> None:

    async def run() -> None:
        async with ServiceGroup(specs(fake_services, orchestrator="deaf")) as group:
            groups.append(group)
        raise AssertionError("the deaf one ended")

    groups: list[ServiceGroup] = []
    task = asyncio.create_task(run())
    await eventually(lambda: bool(groups))
    await asyncio.sleep(0.3)
    assert groups[0]["orchestrator"].is_running
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert not any(groups[0][name].is_running for name in ("target", "draft", "orchestrator"))

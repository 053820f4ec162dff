import asyncio
import re
import signal
import socket
from collections.abc import Awaitable, Callable

import psutil
import pytest

from specdec.cli.service_group import is_serving
from specdec.serving.channel import open_channel
from tests.specdec.cli.conftest import Cli

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


async def address_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_until_a_signal_and_drains(cli: Cli, number: signal.Signals) -> None:
    process = await cli.start("serve", "--port", "0", "-k", "5")
    address = await address_of(process)
    async with open_channel(address, max_message_bytes=1024) as channel:
        assert await is_serving(channel)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 3
    process.send_signal(number)
    ended = await cli.end(process)
    assert ended.status == 0
    assert "target       │ target drained" in ended.err
    assert ended.err.index("orchestrator drained") < min(
        ended.err.index("draft drained"), ended.err.index("target drained")
    )
    assert "specdec      │ all services have ended" in ended.err
    assert "--num-draft-tokens=5" in ended.err
    assert not any(child.is_running() for child in children)


async def test_without_a_terminal_there_are_no_escapes(cli: Cli) -> None:
    process = await cli.start("serve", "--port", "0")
    await address_of(process)
    process.send_signal(signal.SIGTERM)
    assert "\x1b" not in (await cli.end(process)).err


async def test_a_service_that_dies_ends_the_rest_with_status_1(cli: Cli) -> None:
    process = await cli.start("serve", "--port", "0")
    await address_of(process)
    children = psutil.Process(process.pid).children(recursive=True)
    victim = next(child for child in children if "target_service" in child.cmdline())
    victim.kill()
    ended = await cli.end(process)
    assert ended.status == 1
    assert "specdec      │ target was killed by SIGKILL" in ended.err
    assert not any(child.is_running() for child in children)


async def test_a_service_that_does_not_start_ends_the_rest_with_status_1(cli: Cli) -> None:
    cli.environment["FAKE_DRAFT"] = "fail"
    ended = await cli.run("serve", "--port", "0")
    assert ended.status == 1
    assert ended.out == ""
    assert "draft ended with status 3" in ended.err


async def test_services_do_not_outlive_a_supervisor_that_is_killed(cli: Cli, eventually: Eventually) -> None:
    process = await cli.start("serve", "--port", "0")
    await address_of(process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    await cli.end(process)
    await eventually(lambda: not any(child.is_running() for child in children))


async def test_a_second_signal_ends_at_once(cli: Cli) -> None:
    cli.environment["FAKE_ORCHESTRATOR"] = "deaf"
    process = await cli.start("serve", "--port", "0")
    await address_of(process)
    process.send_signal(signal.SIGTERM)
    await asyncio.sleep(1)
    assert process.returncode is None
    process.send_signal(signal.SIGTERM)
    assert (await cli.end(process)).status == 0


async def test_a_port_in_use_is_named(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = await cli.run("serve", "--port", str(port))
    assert ended.status == 1
    assert ended.err.strip() == f"specdec      │ port {port} of 127.0.0.1 cannot be had: Address already in use"


async def test_the_environment_reaches_ports_and_services(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    cli.environment["SPECDEC_ORCHESTRATOR_PORT"] = str(port)
    process = await cli.start("serve", "--drafter", "none")
    assert await address_of(process) == f"127.0.0.1:{port}"
    assert len(psutil.Process(process.pid).children(recursive=True)) == 2
    process.send_signal(signal.SIGTERM)
    assert (await cli.end(process)).status == 0


async def test_a_draft_model_needs_its_drafter(cli: Cli) -> None:
    ended = await cli.run("serve", "--drafter", "suffix", "--draft-model", "x")
    assert ended.status == 2
    assert "--draft-model does not go with" in " ".join(ended.err.split())


async def test_it_says_how_to_watch_what_it_serves(cli: Cli) -> None:
    process = await cli.start("serve", "--port", "0", "--metrics")
    await address_of(process)
    process.send_signal(signal.SIGTERM)
    ended = await cli.end(process)
    (said,) = re.findall(r"specdec top --metrics (\S+)", ended.err)
    assert len(said.split(",")) == 3
    # In the order of their starting: target, draft, orchestrator.
    for address in said.split(","):
        assert f"--metrics-port={address.rpartition(':')[2]}" in ended.err

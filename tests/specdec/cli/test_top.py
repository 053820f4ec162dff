from __future__ import annotations

import json
import signal

import pytest
from typer.testing import CliRunner, Result

from specdec.cli.main import app
from tests.specdec.cli.conftest import Cli
from tests.specdec.top.serving import Emitting, served


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["top", *arguments])


@pytest.fixture
def emitting() -> Emitting:
    emitting = Emitting("specdec-orchestrator")
    emitting.orchestrator.active_requests(3)
    return emitting


def test_once(emitting: Emitting) -> None:
    with served(emitting) as address:
        done = run("--metrics", f"{address}, 127.0.0.1:1", "--once", "--interval", "0.1")
    assert done.exit_code == 0
    assert done.stdout.count("tokens/s") == 1
    assert "process 127.0.0.1:1 connection refused" in done.stdout
    assert "\x1b" not in done.stdout


def test_for_programs(emitting: Emitting) -> None:
    with served(emitting) as address:
        done = run("--metrics", address, "--once", "--json", "--interval", "0.1")
    (process,) = json.loads(done.stdout)["processes"]
    assert (process["address"], process["service"], process["active_requests"]) == (address, "orchestrator", 3)
    assert process["tokens_per_second"] == 0


def test_nobody_answers() -> None:
    done = run("--metrics", "127.0.0.1:1", "--once", "--interval", "0.1")
    assert done.exit_code == 1
    assert "connection refused" in done.stdout


@pytest.mark.parametrize("metrics", ["", ",", "a", "a:b", "http://a:5"])
def test_addresses_that_are_none(metrics: str) -> None:
    assert run("--metrics", metrics, "--once").exit_code == 2


async def test_until_a_signal(cli: Cli, emitting: Emitting) -> None:
    with served(emitting) as address:
        process = await cli.start("top", "--metrics", address, "--json", "--interval", "0.1")
        assert process.stdout is not None
        for _ in range(3):
            assert json.loads(await process.stdout.readline())["processes"][0]["active_requests"] == 3
        process.send_signal(signal.SIGINT)
        ended = await cli.end(process)
    assert (ended.status, ended.err) == (0, "")

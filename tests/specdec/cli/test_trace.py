from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specdec.cli.main import app
from tests.orchestrator.fakes import FakeDraft, FakeTarget
from tests.orchestrator.running import running
from tests.orchestrator.table import half_right
from tests.specdec.cli.conftest import ROOT, Cli, Server
from tests.specdec.fake_generation import FULL_TEXT
from tests.specdec.waterfall.exported import lines
from tests.specdec.waterfall.made import TRACE_ID, at, export, trace

OTHER_ID = "f" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two requests, the second of them a second later."""
    later = [{**each, "traceId": OTHER_ID} for each in trace()]
    for each in later:
        for name in ("startTimeUnixNano", "endTimeUnixNano"):
            each[name] = str(int(each[name]) + at(1_000) - at(0))
    path = tmp_path / "traces.jsonl"
    path.write_bytes(lines(export(trace()), export(later)))
    return path


def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)], input=stdin)


def test_the_last_request_is_drawn(file: Path) -> None:
    done = run(file)
    assert done.exit_code == 0
    assert "mean acceptance length 3.00 (bonus counted)" in " ".join(done.stdout.split())
    assert "2 requests; this is the last" in done.stderr
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_one_is_chosen_by_the_beginning_of_its_trace(file: Path) -> None:
    done = run(file, "--trace-id", TRACE_ID[:6].upper(), "--json")
    assert done.stderr == ""
    request = json.loads(done.stdout)
    assert request["trace_id"] == TRACE_ID
    assert request["mean_acceptance_length"] == 3
    assert [each["round"] for each in request["rounds"]] == [0, 1, 2]
    for each in request["rounds"]:
        assert sum(each["parts_seconds"].values()) == pytest.approx(each["wall_seconds"], abs=1e-5)


def test_one_that_is_not_there(file: Path) -> None:
    done = run(file, "--trace-id", "123")
    assert done.exit_code == 1
    assert "none of the 2 requests" in done.stderr


def test_all_are_listed(file: Path) -> None:
    done = run(file, "--list")
    assert TRACE_ID[:12] in done.stdout
    assert OTHER_ID[:12] in done.stdout
    as_json = [json.loads(line) for line in run(file, "--list", "--json").stdout.splitlines()]
    assert [each["trace_id"] for each in as_json] == [TRACE_ID, OTHER_ID]
    assert "rounds" not in as_json[0]


def test_a_width_is_kept_to(file: Path) -> None:
    assert max(map(len, run(file, "--width", "70").stdout.splitlines())) <= 70


def test_a_page(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    done = run(file, "--html", out)
    assert done.exit_code == 0
    assert done.stdout == ""
    assert out.read_text().startswith("<!doctype html>")
    assert "no such file" in run(file, "--html", tmp_path / "none" / "out.html").stderr


def test_from_standard_input(file: Path) -> None:
    assert run("-", "--json", stdin=file.read_bytes()).exit_code == 0


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"hello\n", "line 1: it is not JSON"),
        (lines(export(trace()[1:])), "no request is in it"),
        (b"", "no request is in it"),
    ],
)
def test_a_file_of_something_else(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    done = run(path)
    assert done.exit_code == 1
    assert complaint in done.stderr
    assert done.stdout == ""


def test_a_file_that_is_being_written(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])
    done = run(file)
    assert done.exit_code == 0
    assert "its last line is incomplete" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x", "--json", "--html", "y"],
        ["x", "--server", "127.0.0.1:1", "--list"],
        ["x", "--server", "127.0.0.1:1", "--trace-id", "12"],
        ["x", "--server", ","],
        ["x", "--server", "127.0.0.1:1", "-k", "many"],
        ["x", "--width", "20"],
    ],
)
def test_options_that_do_not_fit(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


async def test_a_request_is_made_and_drawn() -> None:
    async with running(FakeTarget(), FakeDraft(half_right)) as running_system:
        cli = Cli(ROOT)
        done = await cli.run("trace", "--server", running_system.host.address, "hello", "-k", "3", "-n", "20", "--json")
    assert (done.status, done.err) == (0, "")
    request = json.loads(done.out)
    assert request["num_generated_tokens"] == 20
    assert request["rounds"][0]["base_length"] > 0
    assert {each["num_draft_tokens"] for each in request["rounds"][1:-1]} == {3}
    assert 0 < request["acceptance_rate"] < 1


async def test_a_request_is_what_the_options_say(cli: Cli, server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    done = await cli.run(
        *("trace", "--server", server.address, "my secret", "--raw", "-n", "7", "-k", "2", "--temperature", "0"),
        *("--html", str(out)),
    )
    assert (done.status, done.err, done.out) == (0, "", "")
    (asked,) = server.generation.requests
    assert (asked.text, asked.max_new_tokens, asked.num_draft_tokens) == ("my secret", 7, 2)
    assert asked.sampling.temperature == 0
    html = out.read_text()
    assert "secret" not in html
    assert FULL_TEXT not in html


async def test_without_a_terminal_it_is_drawn_once(cli: Cli, server: Server) -> None:
    done = await cli.run("trace", "--server", server.address)
    assert done.status == 0
    assert done.out.count("full width") == 1
    assert "\x1b" not in done.out
    assert "mean acceptance length 1.67 (bonus counted)" in " ".join(done.out.split())
    assert server.generation.requests[0].chat.messages[0].content


async def test_on_a_terminal_it_is_drawn_as_it_comes(cli: Cli, server: Server) -> None:
    """The request hangs after its first round, which is on the screen all the same; Ctrl-C draws what there is."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specdec.cli.main", "trace", "--server", server.address, "hang"),
        env={**cli.environment, "TERM": "xterm-256color", "COLUMNS": "110", "LINES": "40"},
        stdout=theirs,
    )
    os.close(theirs)
    try:
        seen = b""
        while b"prefill" not in seen:
            seen += await asyncio.wait_for(asyncio.to_thread(os.read, ours, 4096), 30)
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(server.generation.cancelled.wait(), 30)
        seen = b""
        # The end of a terminal whose last program has ended is an error.
        with contextlib.suppress(OSError):
            while True:
                seen += await asyncio.wait_for(asyncio.to_thread(os.read, ours, 4096), 30)
        status = await asyncio.wait_for(process.wait(), 30)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)
    assert status == 0
    assert b"prefill" in seen


@pytest.mark.parametrize(
    ("prompt", "complaint"), [("refuse", "RESOURCE_EXHAUSTED: too many requests"), ("cut", "the stream ended without")]
)
async def test_a_request_that_fails(cli: Cli, server: Server, prompt: str, complaint: str) -> None:
    done = await cli.run("trace", "--server", server.address, prompt)
    assert done.status == 1
    assert f"specdec trace: {complaint}" in done.err
    assert done.out == ""

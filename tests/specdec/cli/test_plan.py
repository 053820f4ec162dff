import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specdec.cli.main import app
from tests.specdec.cli.conftest import Cli, Server

SIMULATED = ("--draft-ms=3", "--verify-ms=30", "--rtt-ms=20", "--acceptance=0.8")
PRICES = ("--target-price=3", "--draft-price=0.8")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "100"})


def test_tables_and_a_verdict() -> None:
    result = run(*SIMULATED, *PRICES)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    # E(7) / (21 + 20 + 30 ms)
    assert ["split,", "off", "7", "58.6", "17.1", "1.76"] in lines
    assert ["co-located", "6", "82.3", "12.1", "2.47"] in lines
    assert result.stdout.splitlines()[-1].startswith("Buy: ")


def test_json_is_all_that_is_printed() -> None:
    result = run(*SIMULATED, *PRICES, "--json", "--tpot-ms=25", "--requests=1000:50:2", "--requests=10:500")
    said = json.loads(result.stdout)
    assert said["one_client"]["split"]["off"]["tokens_per_second"] == pytest.approx(58.6, abs=0.05)
    assert said["given"]["latency_goal"] == {"tpot_seconds": 0.025, "request_seconds": None}
    assert [kind["weight"] for kind in said["given"]["request_mix"]] == [2.0, 1.0]
    assert said["one_target"]["target_only"] is None
    assert said["buy"] in ("co-located", "split")


def test_the_pipeline_asked_for_is_the_one_compared() -> None:
    for mode in ("off", "ahead", "candidates"):
        assert json.loads(run(*SIMULATED, "--json", f"--pipeline={mode}").stdout)["pipeline"] == mode


def test_given_numbers_are_used() -> None:
    said = json.loads(
        run(
            *("--draft-ms=1:2,9:4", "--verify-ms=1x1:20,4x1:21,16x4:30", "--acceptance=0.9,0.5", "--json"),
            *("--draft-rtt-ms=1", "--overhead-ms=0.5", "--colocated-draft-ms=1", "--hit-probability=0.4"),
            *("--rounds-ahead=2", "--request-seconds=9", "--kv-tokens=9000", "--max-sequences=7"),
        ).stdout
    )["given"]
    assert said["draft_passes"] == [
        {"rows": 1, "seconds": 0.002, "sequences": None},
        {"rows": 9, "seconds": 0.004, "sequences": None},
    ]
    assert said["verify_passes"][2] == {"rows": 16, "seconds": 0.03, "sequences": 4}
    assert said["colocated_draft_passes"][0]["seconds"] == 0.001
    assert said["acceptance_by_position"] == [0.9, 0.5]
    assert (said["draft_rtt_seconds"], said["overhead_seconds"]) == (0.001, 0.0005)
    assert (said["hit_probability"], said["rounds_ahead"]) == (0.4, 2)
    assert said["latency_goal"]["request_seconds"] == 9
    assert (said["kv_tokens"], said["max_sequences"]) == (9000, 7)


def test_acceptance_from_a_benchmark(tmp_path: Path) -> None:
    cell = {"drafter": "model", "temperature": 0.0, "num_draft_tokens": 1, "overall": {"mean_acceptance_length": 1.75}}
    path = tmp_path / "acceptance.json"
    path.write_text(json.dumps({"benchmark": "acceptance", "cells": [cell]}))
    result = run("--draft-ms=3", "--verify-ms=30", f"--acceptance-from={path}", "--json")
    assert json.loads(result.stdout)["given"]["acceptance_by_position"] == pytest.approx([0.75])


def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, prices in (("with.png", PRICES), ("without.png", ())):
        assert run(*SIMULATED, *prices, f"--plot={tmp_path / name}").exit_code == 0
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    result = run(*SIMULATED, f"--plot={tmp_path / 'x.png'}")
    assert result.exit_code == 2
    assert "specdec[bench]" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--verify-ms=30", "--acceptance=0.8"), "--draft-ms is missing"),
        (("--draft-ms=3", "--acceptance=0.8"), "--verify-ms is missing"),
        (("--draft-ms=3", "--verify-ms=30"), "--acceptance or"),
        ((*SIMULATED, "--target-price=3"), "go together"),
        ((*SIMULATED, "--target-price=0", "--draft-price=1"), "prices are above 0"),
        ((*SIMULATED, "--tpot-ms=3", "--request-seconds=1"), "one latency goal"),
        ((*SIMULATED, "--tpot-ms=0"), "latency goal"),
        ((*SIMULATED, "--acceptance-from=x"), "exclude each other"),
        ((*SIMULATED, "--acceptance-drafter=model"), "belong to"),
        ((*SIMULATED, "--acceptance=1.2"), "between 0 and 1"),
        ((*SIMULATED, "--verify-ms=1:2:3"), "not ROWS:MS"),
        ((*SIMULATED, "--requests=5"), "not PROMPT:OUTPUT"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


async def test_what_was_not_given_is_read_from_a_running_system(cli: Cli, server: Server) -> None:
    ended = await cli.run("plan", f"--from-server={server.address}", "--verify-ms=5", "--draft-ms=2", "--json")
    assert ended.status == 0, ended.err
    said = json.loads(ended.out)
    assert said["given"]["draft_passes"][0]["seconds"] == 0.002
    assert said["given"]["acceptance_by_position"] == pytest.approx([1 / 3])
    assert said["notes"][0].startswith(f"orchestrator {server.address}")


async def test_what_the_running_system_does_not_say(cli: Cli, server: Server) -> None:
    ended = await cli.run("plan", f"--from-server={server.address}")
    assert ended.status == 2
    assert "no server said it" in " ".join(ended.err.replace("│", " ").split())


async def test_a_running_system_that_does_not_answer(cli: Cli) -> None:
    ended = await cli.run("plan", "--from-server=127.0.0.1:9", "--acceptance=0.8")
    assert ended.status == 1
    assert ended.err.startswith("specdec plan: 127.0.0.1:9: UNAVAILABLE")

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring.prompts import read_prompts
from benchmarks.speedup import SpeedupSettings, rotated
from tests.specdec.cli.conftest import ROOT, Ended, fake_services  # noqa: F401
from tests.specdec.fake_generation import ALL_TOKEN_IDS
from tests.specdec.models.saved_models import save_tiny_model

SETTINGS = SpeedupSettings(
    model="m",
    drafter="ngram",
    draft_model=None,
    num_draft_tokens=4,
    max_new_tokens=8,
    temperature=0,
    seed=0,
    num_threads=1,
    device="cpu",
    dtype="auto",
)


async def run_benchmark(directory: Path, *arguments: str, **environment: str) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.speedup", *arguments),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"question_id": index, "category": category, "turns": [f"number {index}"]}
        for index, category in enumerate(["a", "a", "a", "b", "b"])
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.usefixtures("fake_services")
async def test_it_prints_a_table_and_writes_one_object(tmp_path: Path, prompts: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    ended = await run_benchmark(
        tmp_path,
        *("--prompts", str(prompts), "--json-out", "new/result.json", "--limit", "3"),
        *("--model", str(model), "--device", "cpu", "--max-new-tokens", "8"),
    )
    assert ended.status == 0, ended.err
    *table, last = ended.out.splitlines()
    result: dict[str, Any] = json.loads(last)
    assert json.loads((tmp_path / "new" / "result.json").read_text()) == result
    assert {name: summary["num_prompts"] for name, summary in result["categories"].items()} == {"a": 2, "b": 1}
    overall = result["overall"]
    assert overall["num_prompts"] == 3
    assert overall["num_generated_tokens"] == 3 * len(ALL_TOKEN_IDS)
    assert overall["acceptance_rate"] == pytest.approx(0.4)
    assert overall["mean_acceptance_length"] == pytest.approx(1 + 2 / 3)
    for name in ("tokens_per_second", "speedup_over_k0", "speedup_over_transformers", "speedup_over_assisted"):
        assert overall[name] > 0
    assert overall["round_overhead_seconds_p50"] == pytest.approx(0.0035)
    assert overall["num_same_tokens_as_k0"] == 3
    assert result["settings"]["num_threads"] == 1
    assert result["assisted"] == "transformers with prompt lookup"
    assert result["machine"]["num_cpus"] == os.cpu_count()
    assert any("over" in line for line in table)
    assert "1 thread(s) in every process that runs a model; 3 prompts" in table


@pytest.mark.usefixtures("fake_services")
async def test_a_service_that_does_not_start_is_one_message(tmp_path: Path, prompts: Path) -> None:
    ended = await run_benchmark(tmp_path, "--prompts", str(prompts), FAKE_TARGET="fail")
    assert ended.status == 1
    assert ended.out == ""
    assert "benchmarks.speedup: target ended with status 3" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompts", "absent.jsonl"],
        ["--drafter", "model"],
        ["--drafter", "ngram", "--draft-model", "x"],
        ["--limit", "0"],
        ["--num-threads", "0"],
    ],
)
async def test_bad_usage_is_status_2(tmp_path: Path, arguments: list[str]) -> None:
    ended = await run_benchmark(tmp_path, *arguments)
    assert (ended.status, ended.out) == (2, "")


def test_every_side_comes_first_in_turn() -> None:
    assert ["".join(rotated(("a", "b", "c"), first)) for first in range(4)] == ["abc", "bca", "cab", "abc"]


def test_without_drafts_there_is_nothing_to_compare_them_with() -> None:
    assert SETTINGS.sides == ("speculative", "k0", "transformers", "assisted")
    plain = replace(SETTINGS, num_draft_tokens=0)
    assert plain.sides == ("speculative", "transformers")
    assert plain.assisted is None
    with_model = replace(SETTINGS, drafter="model", draft_model="d")
    assert with_model.assisted == "transformers with assistant_model"


def test_the_prompts_that_come_with_it_can_be_read() -> None:
    read = read_prompts(ROOT / "benchmarks" / "prompts.jsonl")
    assert len({prompt.category for prompt in read}) >= 5
    assert len({prompt.question_id for prompt in read}) == len(read)

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring.prompts import read_prompts
from tests.benchmarks.running import check_usage, run_benchmark
from tests.specdec.cli.conftest import ROOT, fake_services  # noqa: F401
from tests.specdec.fake_generation import ALL_TOKEN_IDS
from tests.specdec.models.saved_models import save_tiny_model


@pytest.mark.usefixtures("fake_services")
async def test_it_prints_a_table_and_writes_one_object(tmp_path: Path, prompts: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    ended = await run_benchmark(
        "speedup",
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
    assert result["drafter"] == "ngram"
    assert result["drafters"] == {"ngram": {name: result[name] for name in ("assisted", "categories", "overall")}}
    assert any("over" in line for line in table)
    assert "1 thread(s) in every process that runs a model; 3 prompts" in table


@pytest.mark.usefixtures("fake_services")
async def test_several_drafters_are_sides_of_one_run(tmp_path: Path, prompts: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    ended = await run_benchmark(
        "speedup",
        tmp_path,
        *("--prompts", str(prompts), "--limit", "2", "--drafter", "suffix", "--drafter", "ngram"),
        *("--model", str(model), "--device", "cpu", "--max-new-tokens", "8"),
    )
    assert ended.status == 0, ended.err
    *table, last = ended.out.splitlines()
    result: dict[str, Any] = json.loads(last)
    assert list(result["drafters"]) == ["suffix", "ngram"]
    assert result["drafter"] == "suffix"
    assert result["overall"] == result["drafters"]["suffix"]["overall"]
    for of_drafter in result["drafters"].values():
        assert of_drafter["overall"]["num_prompts"] == 2
        assert of_drafter["overall"]["speedup_over_assisted"] > 0
    for name in ("suffix", "ngram"):
        assert any(f"{name}: decoding by the services" in line for line in table)


@pytest.mark.usefixtures("fake_services")
async def test_a_service_that_does_not_start_is_one_message(tmp_path: Path, prompts: Path) -> None:
    ended = await run_benchmark("speedup", tmp_path, "--prompts", str(prompts), FAKE_TARGET="fail")
    assert ended.status == 1
    assert ended.out == ""
    assert "benchmarks.speedup: target ended with status 3" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompts", "absent.jsonl"],
        ["--drafter", "magic"],
        ["--drafter", "model", "--model", "another"],
        ["--drafter", "ngram", "--draft-model", "x"],
        ["--limit", "0"],
        ["--num-threads", "0"],
    ],
)
def test_bad_usage_is_status_2(arguments: list[str]) -> None:
    ended = check_usage("speedup", *arguments)
    assert (ended.status, ended.out) == (2, "")


def test_the_prompts_that_come_with_it_can_be_read() -> None:
    read = read_prompts(ROOT / "benchmarks" / "prompts.jsonl")
    assert len({prompt.category for prompt in read}) >= 5
    assert len({prompt.question_id for prompt in read}) == len(read)

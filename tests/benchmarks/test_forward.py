"""benchmarks.forward on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.running import check_usage, run_benchmark
from tests.specdec.models.saved_models import save_tiny_model


async def test_it_prints_tables_draws_curves_and_writes_one_object(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    ended = await run_benchmark(
        "forward",
        tmp_path,
        *("--model", str(model), "--sides", "float32/default,float32/auto,bfloat16/default"),
        *("--rows", "4,1", "--sequences", "1,3", "--contexts", "16,64", "--context", "16", "--repeats", "3"),
        *("--json-out", "result.json", "--plot", "curves.png", "--clock", "cpu"),
        SPECDEC_CACHE=str(tmp_path / "cache"),
    )
    assert ended.status == 0, ended.err
    *tables, last = ended.out.splitlines()
    result: dict[str, Any] = json.loads(last)
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert {title: sum(title in line for line in tables) for title in ("by rows", "by sequences", "by context")} == {
        "by rows": 1,
        "by sequences": 1,
        "by context": 1,
    }
    passes = result["passes"]
    by_sweep = {
        sweep: {
            (entry["num_sequences"], entry["num_rows"], entry["context"]) for entry in passes if entry["sweep"] == sweep
        }
        for sweep in ("rows", "sequences", "context")
    }
    assert by_sweep == {
        "rows": {(1, 1, 16), (1, 4, 16)},
        "sequences": {(1, 1, 16), (3, 1, 16)},
        "context": {(1, 1, 16), (1, 1, 64)},
    }
    assert len(passes) == 3 * 6
    for entry in passes:
        assert 0 < entry["least_seconds"] <= entry["cpu_seconds"]
        if entry["side"] == "float32/default":
            assert entry["over_baseline"] == 1.0
    assert result["machine"]["num_cpus"]
    # 2 layers, 2 key heads of 8, keys and values.
    assert {name: facts["expected_bytes_per_token"] for name, facts in result["key_value_memory"].items()} == {
        "float32/default": 256,
        "float32/auto": 256,
        "bfloat16/default": 128,
    }
    for facts in result["key_value_memory"].values():
        assert facts["bytes_per_token"] == pytest.approx(facts["expected_bytes_per_token"], rel=0.05)
        assert facts["verdict"].startswith("within")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sides", "float32"],
        ["--sides", "float32/fast"],
        ["--sides", "float64/auto"],
        ["--rows", "1,a"],
        ["--rows", "0"],
        ["--clock", "cpu", "--num-threads", "2"],
        ["--repeats", "0"],
    ],
)
def test_bad_usage_is_status_2(arguments: list[str]) -> None:
    ended = check_usage("forward", *arguments)
    assert (ended.status, ended.out) == (2, "")


def test_a_side_that_cannot_be_had_is_one_message(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    ended = check_usage("forward", "--model", str(model), "--sides", "int4/default")
    assert ended.status == 1
    assert "benchmarks.forward: int4/default: model.layers.0." in ended.err
    assert "Traceback" not in ended.err

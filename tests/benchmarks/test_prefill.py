import json
from pathlib import Path
from typing import Any

from tests.benchmarks.running import run_benchmark
from tests.specdec.models.saved_models import save_tiny_model


async def test_it_prints_tables_and_one_object(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    ended = await run_benchmark(
        "prefill",
        tmp_path,
        *("--model", str(model), "--device", "cpu", "--json-out", "result.json", "--repeats", "2", "--running", "2"),
        *("--prefix-tokens", "60", "--long-tokens", "90", "--prefill-chunk-rows", "16"),
    )
    assert ended.status == 0, ended.err
    *table, last = ended.out.splitlines()
    result: dict[str, Any] = json.loads(last)
    assert json.loads((tmp_path / "result.json").read_text()) == result
    prefix, arrival = result["prefix"], result["arrival"]
    assert prefix["num_cached_tokens"] == 48
    assert prefix["ratio"] > 0
    assert arrival["p99_over_median"] >= 1
    assert arrival["num_waits"] >= 2 * 24
    assert arrival["long_ttft_seconds"] > 0
    assert any("num cached tokens" in line for line in table)

import json
from pathlib import Path

import pytest

from benchmarks.deployment.pass_log import Pass
from benchmarks.overhead import target_figures
from tests.benchmarks.running import run_benchmark

TIMEOUT_SECONDS = 900


def test_cpu_time_of_a_pass_falls_into_parts() -> None:
    passes = [
        Pass(0, 1, 0, 1, 0.3, model_cpu_seconds=0.2, meter_cpu_seconds=0.05, num_sequences=4, num_rows=20),
        Pass(1, 2, 0, 1, 0.5, model_cpu_seconds=0.4, meter_cpu_seconds=0.15, num_sequences=4, num_rows=24),
    ]
    assert target_figures(passes, cpu_seconds=1.6) == pytest.approx(
        {
            "num_passes": 2,
            "sequences_per_pass": 4,
            "rows_per_pass": 22,
            "cpu_seconds_per_pass": 0.7,
            "meter_cpu_seconds_per_pass": 0.1,
            "model_cpu_seconds_per_pass": 0.3,
            "packing_cpu_seconds_per_pass": 0.1,
            "other_cpu_seconds_per_pass": 0.3,
            "besides_model_cpu_seconds_per_pass": 0.4,
        }
    )


@pytest.mark.timeout(TIMEOUT_SECONDS)
async def test_it_measures_both_services(tmp_path: Path) -> None:
    ended = await run_benchmark(
        "overhead",
        tmp_path,
        *("--sequences", "3", "-k", "2", "--duration-seconds", "1.5", "--warm-up-seconds", "1"),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert ended.status == 0, ended.err
    result = json.loads(ended.out.splitlines()[-1])
    for target in (result["target"], result["target_drawn"]):
        assert target["sequences_per_pass"] == 3
        assert target["rows_per_pass"] == 9
        parts = ("model", "packing", "other")
        assert all(target[f"{part}_cpu_seconds_per_pass"] > 0 for part in parts)
        assert sum(target[f"{part}_cpu_seconds_per_pass"] for part in parts) == pytest.approx(
            target["cpu_seconds_per_pass"]
        )
    orchestrator = result["orchestrator"]
    for name in ("streams", "unary"):
        assert orchestrator[f"{name}_num_rounds"] > 0
        assert orchestrator[f"{name}_cpu_seconds_per_round"] > 0

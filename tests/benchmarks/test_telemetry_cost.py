import json
from pathlib import Path

import pytest

from benchmarks.telemetry_cost import NO_COLLECTOR, OFF, SIDES, TRACED, summary
from tests.benchmarks.running import run_benchmark
from tests.specdec.models.saved_models import save_tiny_model


def test_ratios_are_taken_within_a_turn() -> None:
    # The machine was half as fast in the second turn; that is no matter.
    rates = {
        OFF: [(100.0, 1.0), (50.0, 2.0)],
        TRACED: [(98.0, 1.1), (49.0, 2.2)],
        NO_COLLECTOR: [(99.0, 1.0), (49.5, 2.0)],
    }
    found = summary(rates)
    assert found[OFF]["throughput_ratio"] == found[OFF]["cpu_ratio"] == 1.0
    assert found[TRACED]["throughput_ratio"] == pytest.approx(0.98)
    assert found[TRACED]["cpu_ratio"] == pytest.approx(1.1)
    assert found[NO_COLLECTOR]["throughput_ratio"] == pytest.approx(0.99)
    assert found[TRACED]["tokens_per_second"] == pytest.approx(73.5)


@pytest.mark.slow
async def test_all_sides_are_measured(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    ended = await run_benchmark(
        "telemetry_cost",
        tmp_path,
        *(f"--model={model}", "--repeats=1", "--duration-seconds=0.5", "--clients=2", "--json-out=out.json"),
    )
    assert ended.status == 0, ended.err
    result = json.loads(ended.out.splitlines()[-1])
    assert json.loads((tmp_path / "out.json").read_text()) == result
    assert set(result["sides"]) == set(SIDES)
    assert all(side["tokens_per_second"] > 0 for side in result["sides"].values())

import json
from pathlib import Path

from tests.benchmarks.running import check_usage, run_benchmark


async def test_the_round_trips_of_the_relay_are_reported(tmp_path: Path) -> None:
    ended = await run_benchmark("rtt", tmp_path, "--rtt-ms=0,10", "--num-probes=5", "--json-out=out.json")
    assert ended.status == 0, ended.err
    result = json.loads(ended.out.splitlines()[-1])
    assert json.loads((tmp_path / "out.json").read_text()) == result
    nothing, ten = result["cells"]
    assert nothing["asked_rtt_seconds"] == 0
    assert 0 < nothing["p50_seconds"] < ten["p50_seconds"]
    assert 0.01 <= ten["p50_seconds"] <= ten["p99_seconds"]
    assert result["direct"]["p50_seconds"] > 0


def test_a_negative_round_trip() -> None:
    assert check_usage("rtt", "--rtt-ms=-1").status == 2

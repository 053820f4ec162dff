import json
from pathlib import Path

import pytest

from benchmarks.round_overhead import figures
from specdec.v1 import generation_pb2, model_pb2
from tests.benchmarks.running import check_usage, run_benchmark

TIMEOUT_SECONDS = 300


def report(draft_wait: int, verify_wait: int, wall: int) -> generation_pb2.RoundReport:
    return generation_pb2.RoundReport(
        wall_microseconds=wall,
        draft_wait_microseconds=draft_wait,
        verify_wait_microseconds=verify_wait,
        draft=model_pb2.Timings(queue_microseconds=500, compute_microseconds=13_000),
        verify=model_pb2.Timings(queue_microseconds=300, compute_microseconds=26_000),
    )


def test_what_is_left_of_a_round_falls_into_parts() -> None:
    found = figures([report(14_500, 27_300, 42_300), report(14_700, 27_500, 43_300), report(14_600, 27_400, 42_600)])
    assert found == pytest.approx(
        {
            "num_rounds": 3,
            "round_seconds": 0.0426,
            "draft_seconds": 0.013,
            "verify_seconds": 0.026,
            "draft_network_seconds": 0.0011,
            "draft_queue_seconds": 0.0005,
            "target_network_seconds": 0.0011,
            "target_queue_seconds": 0.0003,
            "orchestrator_seconds": 0.0006,
            "overhead_seconds": 0.0036,
        }
    )


@pytest.mark.timeout(TIMEOUT_SECONDS)
async def test_it_measures_rounds_beside_grpc_alone(tmp_path: Path) -> None:
    ended = await run_benchmark(
        "round_overhead",
        tmp_path,
        *("--repeats=1", "--max-new-tokens=24", "--num-probes=5", "--json-out=out.json"),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert ended.status == 0, ended.err
    result = json.loads(ended.out.splitlines()[-1])
    assert json.loads((tmp_path / "out.json").read_text()) == result
    parts = ("draft_network", "draft_queue", "target_network", "target_queue", "orchestrator")
    found = result["round"]
    assert found["num_rounds"] > 3
    # A draft that began before it was waited for leaves no network of its own: there a busy machine has the
    # orchestrator come late.
    assert all(0 <= found[f"{part}_seconds"] < found["round_seconds"] for part in parts)
    assert 0 < found["overhead_seconds"] < found["round_seconds"] - found["draft_seconds"]
    assert [each["pause_seconds"] for each in result["echo"]] == [0, 0.005, 0.015, 0.03]
    assert all(each["rtt_seconds"] > 0 for each in result["echo"])


def test_arguments_that_make_no_sense() -> None:
    assert check_usage("round_overhead", "--repeats=0").status == 2

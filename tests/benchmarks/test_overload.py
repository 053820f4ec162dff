import json
from pathlib import Path

import grpc
import pytest

from benchmarks.measuring.closed_loop import Delta, RequestRecord
from benchmarks.measuring.open_loop import Attempt
from benchmarks.overload import figures, misses
from tests.benchmarks.running import run_benchmark
from tests.specdec.models.saved_models import save_tiny_model

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def record(seconds_per_token: float) -> RequestRecord:
    deltas = [Delta(1.0, 1, 0, 0, 0), Delta(1.0 + 10 * seconds_per_token, 10, 1, 0, 0)]
    return RequestRecord(0, 0.5, deltas, finished=9.0)


def admitted(seconds_per_token: float) -> Attempt:
    return Attempt(0.0, first=1.0, last=1.0 + 10 * seconds_per_token, num_tokens=11, finished=True)


def refused(seconds: float = 0.01, retry: float | None = 1.0, code: grpc.StatusCode = EXHAUSTED) -> Attempt:
    return Attempt(0.0, code=code, refused_seconds=seconds, retry_seconds=retry)


MEMORY = [{"target": 1000, "orchestrator": 100}, {"target": 1040, "orchestrator": 101}]


def test_a_well_behaved_system_misses_nothing() -> None:
    found = figures([record(0.02)], 10.0, [admitted(0.028), *[refused()] * 3], MEMORY)
    assert found["capacity"] == {"finished_per_second": 0.1, "tpot_p50_seconds": pytest.approx(0.02)}
    assert found["overload"]["refused_by_code"] == {"RESOURCE_EXHAUSTED": 3}
    assert found["tpot_ratio"] == pytest.approx(1.4)
    assert misses(found) == []


@pytest.mark.parametrize(
    ("attempts", "memory", "sentence"),
    [
        ([admitted(0.02)], MEMORY, "no overload"),
        ([admitted(0.02), refused(0.2)], MEMORY, "more than 0.1 s"),
        ([admitted(0.02), refused(retry=None)], MEMORY, "retry delay"),
        ([admitted(0.02), refused(code=grpc.StatusCode.UNAVAILABLE)], MEMORY, "retry delay"),
        ([admitted(0.04), refused()], MEMORY, "as long a token"),
        ([admitted(0.02), refused()], [{"target": 1000}, {"target": 1060}], "memory grew: target"),
    ],
)
def test_each_bound_can_be_missed(attempts: list[Attempt], memory: list[dict[str, int]], sentence: str) -> None:
    (missed,) = misses(figures([record(0.02)], 10.0, attempts, memory))
    assert sentence in missed


async def test_a_tiny_target_is_overloaded(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    ended = await run_benchmark(
        "overload",
        tmp_path,
        f"--model={model}",
        "--limit=2",
        "--seconds=2",
        "--capacity-seconds=2",
        "--max-new-tokens=40",
        "--json-out=out.json",
    )
    result = json.loads(ended.out.splitlines()[-1])
    assert json.loads((tmp_path / "out.json").read_text()) == result
    assert result["overload"]["finished"] > 0
    assert result["overload"]["refused"] > 0
    assert result["overload"]["refused_without_retry_delay"] == 0
    assert set(result["overload"]["refused_by_code"]) == {"RESOURCE_EXHAUSTED"}
    assert ended.status == bool(result["missed"])

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.measuring.acceptance_report import Cell, Condition, acceptance_table
from specdec.client import GenerationResult
from specdec.v1 import draft_pb2, generation_pb2
from tests.benchmarks.running import check_usage, run_benchmark
from tests.specdec.cli.conftest import fake_services  # noqa: F401


def generation(*rounds: tuple[int, int, draft_pb2.DraftSource.ValueType], fallbacks: int = 0) -> GenerationResult:
    """A prefill, and rounds with so many draft tokens, accepted tokens, and from where."""
    return GenerationResult(
        rounds=[
            generation_pb2.RoundReport(round=0),
            *(
                generation_pb2.RoundReport(
                    round=index, num_draft_tokens=drafted, num_accepted_tokens=accepted, draft_source=source
                )
                for index, (drafted, accepted, source) in enumerate(rounds, start=1)
            ),
        ],
        finished=generation_pb2.Finished(stats=generation_pb2.RoundStats(num_fallback_rounds=fallbacks)),
    )


MODEL, SUFFIX = draft_pb2.DRAFT_SOURCE_MODEL, draft_pb2.DRAFT_SOURCE_SUFFIX
NOWHERE = draft_pb2.DRAFT_SOURCE_UNSPECIFIED


@pytest.fixture
def cell() -> Cell:
    made = Cell(Condition("combined", 0.8, 4))
    made.add("a", generation((4, 4, MODEL), (4, 1, SUFFIX), (0, 0, NOWHERE)))
    made.add("b", generation((4, 0, MODEL), fallbacks=2))
    made.add("a", generation((4, 3, MODEL)))
    return made


def test_lengths_are_of_rounds_with_the_bonus_counted(cell: Cell) -> None:
    report: Any = cell.report()
    assert (report["drafter"], report["temperature"], report["num_draft_tokens"]) == ("combined", 0.8, 4)
    overall = report["overall"]
    assert overall["num_prompts"] == 3
    assert overall["num_fallback_rounds"] == 2
    assert (overall["num_rounds"], overall["num_draft_tokens"], overall["num_accepted_tokens"]) == (5, 16, 8)
    assert overall["mean_acceptance_length"] == pytest.approx(1 + 8 / 5)
    assert overall["acceptance_rate"] == pytest.approx(0.5)
    assert report["categories"]["a"]["mean_acceptance_length"] == pytest.approx(1 + 8 / 4)
    assert report["categories"]["b"]["mean_acceptance_length"] == pytest.approx(1.0)


def test_sources_are_apart(cell: Cell) -> None:
    report: Any = cell.report()
    assert report["overall"]["sources"] == {
        "model": {
            "num_rounds": 3,
            "num_draft_tokens": 12,
            "num_accepted_tokens": 7,
            "mean_acceptance_length": pytest.approx(1 + 7 / 3),
            "acceptance_rate": pytest.approx(7 / 12),
        },
        "suffix": {
            "num_rounds": 1,
            "num_draft_tokens": 4,
            "num_accepted_tokens": 1,
            "mean_acceptance_length": pytest.approx(2.0),
            "acceptance_rate": pytest.approx(0.25),
        },
    }


def test_the_table_has_a_column_for_each_condition_of_the_drafter(cell: Cell) -> None:
    other = Cell(Condition("ngram", 0.8, 4))
    empty = Cell(Condition("combined", 0.8, 8))
    console = Console(file=io.StringIO(), width=80)
    console.print(acceptance_table("combined", [cell, other, empty], ["a", "b"]))
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["a", "3.00", "–"] in rows
    assert ["b", "1.00", "–"] in rows
    assert ["all", "2.60", "–"] in rows
    assert ["category", "K", "4", "K", "8"] in rows


@pytest.mark.usefixtures("fake_services")
async def test_it_prints_tables_and_writes_one_object(tmp_path: Path, prompts: Path) -> None:
    ended = await run_benchmark(
        "acceptance",
        tmp_path,
        *("--prompts", str(prompts), "--json-out", "new/result.json", "--limit", "4", "--concurrency", "3"),
        *("--drafter", "suffix", "--drafter", "ngram", "-k", "2,4", "--temperature", "0,0.8"),
    )
    assert ended.status == 0, ended.err
    *table, last = ended.out.splitlines()
    result: dict[str, Any] = json.loads(last)
    assert json.loads((tmp_path / "new" / "result.json").read_text()) == result
    conditions = [(cell["drafter"], cell["temperature"], cell["num_draft_tokens"]) for cell in result["cells"]]
    assert conditions == [
        (drafter, temperature, count)
        for drafter in ("suffix", "ngram")
        for temperature in (0.0, 0.8)
        for count in (2, 4)
    ]
    for cell in result["cells"]:
        assert cell["overall"]["mean_acceptance_length"] == pytest.approx(1 + 2 / 3)
        assert {name: summary["num_prompts"] for name, summary in cell["categories"].items()} == {"a": 2, "b": 2}
    assert any("suffix: mean acceptance length" in line for line in table)
    assert any("4 prompts, coupled rule" in line for line in table)


@pytest.mark.usefixtures("fake_services")
async def test_a_service_that_does_not_start_is_one_message(tmp_path: Path, prompts: Path) -> None:
    ended = await run_benchmark("acceptance", tmp_path, "--prompts", str(prompts), FAKE_TARGET="fail")
    assert ended.status == 1
    assert ended.out == ""
    assert "benchmarks.acceptance: target ended with status 3" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["-k", "2,many"],
        ["-k", "2,-1"],
        ["--temperature", "warm"],
        ["--drafter", "magic"],
        ["--drafter", "model", "--model", "another"],
    ],
)
def test_bad_usage_is_status_2(arguments: list[str]) -> None:
    ended = check_usage("acceptance", *arguments)
    assert (ended.status, ended.out) == (2, "")

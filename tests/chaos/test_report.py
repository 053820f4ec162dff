"""What counts, and what makes a run unclean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chaos.comparing import Difference
from tests.chaos.faults import Fault, Kind
from tests.chaos.injecting import Injected
from tests.chaos.load import Stream
from tests.chaos.report import ChaosReport, make_report


def stream(*arrivals: float, **fields: Any) -> Stream:
    return Stream(0, 0.0, list(arrivals), is_over=True, **fields)


def injected(began: float, ended: float, kind: Kind = Kind.KILL) -> Injected:
    return Injected(Fault(0, kind, "target", 5, 0, 0.0), "target-0", began, ended)


def report(streams: list[Stream], faults: list[Injected] | None = None, **changes: Any) -> ChaosReport:
    values: dict[str, Any] = {
        "seed": 7,
        "seconds": 3.0,
        "undisturbed": [],
        "num_planned_faults": len(faults or []),
        "num_left": {"target-0": 0},
        "growth_bytes": {"target": 5 << 20},
        "problems": (),
        **changes,
    }
    return make_report(streams=streams, injected=faults or [], **values)


def test_a_run_without_anything_wrong_is_clean() -> None:
    made = report([stream(0.5, 0.6)])
    assert made.is_clean
    assert made.lines()[-1] == "clean"
    assert json.loads(json.dumps(made.to_json()))["is_clean"] is True


@pytest.mark.parametrize(
    "made",
    [
        report([stream(0.5, failure="UNAVAILABLE: gone")]),
        report([stream(0.5, difference=Difference(num_lost=1))]),
        report([stream(0.5, difference=Difference(num_wrong_characters=1))]),
        report([stream(0.5)], num_left={"target-0": 0, "draft-0": 1}),
        report([stream(0.5)], problems=["draft-0 logged: ERROR"]),
    ],
)
def test_anything_wrong_is_told_with_the_seed(made: ChaosReport) -> None:
    assert not made.is_clean
    assert made.lines()[-1].endswith("--seed 7")


def test_requests_that_clients_cancelled_or_that_still_run_do_not_count() -> None:
    running = Stream(0, 0.0, [0.5], failure="x")
    made = report([stream(0.5), stream(0.5, is_cancelled=True, failure="x"), running])
    assert (made.num_requests, made.num_failed) == (1, 0)


def test_gaps_are_between_deltas_and_the_first_token_counts_from_sending() -> None:
    made = report([stream(0.5, 0.6, 1.6, 1.7)])
    assert made.ttft_seconds["median"] == 0.5
    assert made.longest_gap_seconds["max"] == pytest.approx(1.0)


def test_the_gap_of_a_fault_is_the_longest_one_that_it_touches() -> None:
    streams = [stream(1.0, 2.0, 2.1, 5.0), stream(1.0, 1.1, 4.1)]
    made = report(streams, [injected(2.05, 2.08), injected(6.0, 7.0), injected(0.5, 1.05, Kind.DRAIN)])
    assert made.faults["target: kill -9"] == {"number": 2, "median": pytest.approx(1.5), "max": pytest.approx(3.0)}
    assert made.faults["target: SIGTERM"]["max"] == pytest.approx(1.0)
    assert any(line.startswith("target: kill -9 ") for line in made.lines())

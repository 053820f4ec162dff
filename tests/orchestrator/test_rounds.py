"""Where the time of a round went."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.rounds import Round
from specdec.v1 import model_pb2
from tests.orchestrator.made_rounds import made_round


def waited(seconds: float, *, queue: float, compute: float) -> Round:
    done = made_round(2, 1, verify_seconds=0.1)
    timings = model_pb2.Timings(queue_microseconds=round(queue * 1e6), compute_microseconds=round(compute * 1e6))
    return replace(done, drafted=replace(done.drafted, wait_seconds=seconds, timings=timings))


def test_drafting_that_nobody_waited_for_is_overlap_and_the_rest_of_a_wait_is_the_network() -> None:
    hidden = waited(0.001, queue=0.002, compute=0.02)
    assert hidden.overlap_seconds == pytest.approx(0.021)
    assert hidden.draft_network_seconds == 0
    plain = waited(0.03, queue=0.002, compute=0.02)
    assert plain.overlap_seconds == 0
    assert plain.draft_network_seconds == pytest.approx(0.008)
    assert made_round(0, 0, verify_seconds=0.1).overlap_seconds == 0

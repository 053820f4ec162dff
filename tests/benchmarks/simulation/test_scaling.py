import pytest

from benchmarks.deployment.pass_log import Pass
from benchmarks.simulation.scaling import time_scale


def passes(computing: float, planned: float, count: int = 10) -> list[Pass]:
    return [Pass(0, max(computing, planned), computing, planned, 0, 0, 0, 1, 1) for _ in range(count)]


@pytest.mark.parametrize(
    ("target", "draft", "cpu_seconds", "expected"),
    [
        (passes(0.001, 0.01), passes(0.001, 0.01), 0.01, 1),
        (passes(0.015, 0.01), passes(0.001, 0.01), 0.01, 3),
        (passes(0.001, 0.01), passes(0.06, 0.01), 0.01, 20),
        # 2 s of work on two CPUs for 0.1 s of the target: 10 times too much, and twice that is wanted.
        (passes(0.001, 0.01), [], 2.0, 20),
        ([], [], 1.0, 1),
    ],
)
def test_computing_takes_at_most_half_of_the_simulated_time(
    target: list[Pass], draft: list[Pass], cpu_seconds: float, expected: float
) -> None:
    assert time_scale(target, draft, cpu_seconds, 2) == pytest.approx(expected)


def test_a_single_stall_does_not_decide() -> None:
    assert time_scale([*passes(0.001, 0.01, 19), *passes(1.0, 0.01, 1)], [], 0.01, 2) == 1

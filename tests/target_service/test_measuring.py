"""Forward costs, measured when the target starts."""

import pytest

from specdec.forward_costs import ForwardCosts
from specdec.runner.runner import ModelRunner
from target_service import measuring
from target_service.measuring import measure_forward_costs
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama


@pytest.fixture(name="runner", scope="module")
def _runner() -> ModelRunner:
    return ModelRunner(tiny_llama(), TINY_VOCAB_SIZE)


@pytest.mark.parametrize(
    ("max_rows", "max_length", "expected", "of_several"),
    [(20, 512, [1, 2, 3, 5, 9, 17], [8]), (512, 40, [1, 2, 3, 5], [8]), (512, 2, [1], [8]), (7, 512, [1, 2, 3, 5], [])],
)
def test_it_measures_as_many_rows_as_can_be_run(
    runner: ModelRunner, max_rows: int, max_length: int, expected: list[int], of_several: list[int]
) -> None:
    measured = measure_forward_costs(runner, max_rows, max_length)
    assert [cost.rows for cost in measured if not cost.sequences] == expected
    assert [(cost.rows, cost.sequences) for cost in measured if cost.sequences] == [(8, 8) for _ in of_several]
    costs = ForwardCosts.measured((cost.rows, cost.sequences or 1, cost.microseconds / 1e6) for cost in measured)
    assert 0 < costs.seconds(1) <= costs.seconds(1, 2) < 1


def test_it_ends_when_the_time_is_over(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_BUDGET_SECONDS", 0.0)
    assert [cost.rows for cost in measure_forward_costs(runner, 512, 512)] == [1]

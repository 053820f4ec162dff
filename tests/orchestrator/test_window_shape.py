"""Which window is best for known acceptance and costs."""

from collections.abc import Sequence

import pytest

from orchestrator.round_costs import RoundCosts
from orchestrator.window_shape import NO_WINDOW, WindowShape, best_shape, expected_tokens
from specdec.v1 import model_pb2
from tests.orchestrator.made_rounds import made_round


@pytest.mark.parametrize(
    ("rates", "expected"),
    [([], [1.0]), ([0.5, 0.5], [1.0, 1.5, 1.75]), ([0.0, 0.9], [1.0]), ([0.05, 0.05], [1.0, 1.05])],
)
def test_expected_tokens(rates: Sequence[float], expected: Sequence[float]) -> None:
    assert list(expected_tokens(rates)) == pytest.approx(expected)


def costs(step_seconds: float) -> RoundCosts:
    """A pass of 100 ms, and 1 ms a row."""
    known = RoundCosts()
    points = [(1, 100_000), (101, 200_000)]
    known.announce(
        model_pb2.ModelInfo(forward_costs=[model_pb2.ForwardCost(rows=rows, microseconds=us) for rows, us in points])
    )
    known.observe(made_round(1, 0, draft_seconds=step_seconds))
    return known


def test_steps_are_taken_while_they_bring_more_than_they_cost() -> None:
    cheap, dear = costs(0.001).predicted(by_lookup=False), costs(0.2).predicted(by_lookup=False)
    assert best_shape(cheap, [0.5] * 8, (), None) == WindowShape(4, 0)
    assert best_shape(dear, [0.5] * 8, (), None) == NO_WINDOW
    assert best_shape(cheap, [0.5] * 3, (), None) == WindowShape(3, 0)


def test_runners_up_come_on_top_where_steps_are_dear() -> None:
    shape = best_shape(costs(0.03).predicted(by_lookup=False), [0.5] * 8, (0.2, 0.1, 0.001), None)
    assert shape.num_others == 2
    assert shape.num_draft_tokens == shape.num_steps + 2


def test_the_present_shape_stays_unless_another_is_clearly_better() -> None:
    predicted = costs(0.001).predicted(by_lookup=False)
    assert best_shape(predicted, [0.5] * 8, (), WindowShape(5, 0)) == WindowShape(5, 0)
    assert best_shape(predicted, [0.5] * 8, (), WindowShape(1, 0)) != WindowShape(1, 0)

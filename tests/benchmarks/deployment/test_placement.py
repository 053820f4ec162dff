import pytest

from benchmarks.deployment.placement import NOT_PINNED, Placement, pinned_placement


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        ({3}, NOT_PINNED),
        ({0, 1}, Placement(frozenset({0}), frozenset({1}), frozenset({1}))),
        ({2, 5, 7, 9}, Placement(frozenset({2}), frozenset({5}), frozenset({7, 9}))),
    ],
)
def test_nobody_shares_with_the_target(available: set[int], expected: Placement) -> None:
    assert pinned_placement(frozenset(available)) == expected

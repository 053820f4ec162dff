"""Trees of a chain with runners-up, against every choice of nodes there is."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from draft_service.token_tree import Level, TokenTree, grow_tree, is_grown


def some_levels(seed: int, num_levels: int, width: int) -> list[Level]:
    numbers = random.Random(seed)
    levels: list[Level] = []
    for depth in range(num_levels):
        shares = sorted((numbers.random() for _ in range(width)), reverse=True)
        total = sum(shares) * 1.1
        levels.append([(100 * depth + rank, share / total) for rank, share in enumerate(shares)])
    return levels


def reach(levels: Sequence[Level], depth: int, rank: int) -> float:
    """How likely the target is to come to a node."""
    return math.prod(level[0][1] for level in levels[:depth]) * levels[depth][rank][1]


def nodes_of(tree: TokenTree, levels: Sequence[Level]) -> set[tuple[int, int]]:
    """Depth and rank of each node, with its place in the tree checked."""
    found = set()
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        depth, rank = divmod(token, 100)
        assert levels[depth][rank][0] == token
        assert parent == depth - 1
        assert parent < node
        assert (rank == 0) == (node < tree.chain_length)
        found.add((depth, rank))
    assert len(found) == len(tree.token_ids)
    return found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("num_nodes", [1, 2, 3, 5])
def test_no_other_tree_is_likelier_to_be_accepted_from(seed: int, num_nodes: int) -> None:
    levels = some_levels(seed, 3, 3)
    places = [(depth, rank) for depth in range(3) for rank in range(3)]
    best = max(
        sum(reach(levels, depth, rank) for depth, rank in chosen)
        for chosen in itertools.combinations(places, num_nodes)
        if all((above, 0) in chosen for depth, _ in chosen for above in range(depth))
    )
    found = nodes_of(grow_tree(levels, num_nodes), levels)
    assert len(found) == num_nodes
    assert sum(reach(levels, depth, rank) for depth, rank in found) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("num_nodes", [1, 3, 6])
def test_a_tree_that_is_grown_is_not_changed_by_further_steps(seed: int, num_nodes: int) -> None:
    levels = some_levels(seed, 5, 4)
    num_steps = next((count for count in range(1, 6) if is_grown(levels[:count], num_nodes)), 5)
    assert nodes_of(grow_tree(levels[:num_steps], num_nodes), levels) == nodes_of(grow_tree(levels, num_nodes), levels)


def test_steps_are_saved_where_the_draft_is_unsure() -> None:
    unsure = [[(rank, 0.2) for rank in range(4)]]
    sure = [[(0, 0.97), (1, 0.01), (2, 0.005), (3, 0.005)]]
    assert is_grown(unsure, 4)
    assert not is_grown(unsure, 5)
    assert not is_grown(sure, 4)


def test_runners_up_are_never_put_before_the_chain() -> None:
    tree = grow_tree([[(7, 0.1), (8, 0.6)], [(9, 0.5)]], 2)
    assert tree == TokenTree([7, 8], [-1, -1], 1)


def test_of_few_candidates_there_is_a_small_tree() -> None:
    assert grow_tree([[(7, 0.5)]], 4) == TokenTree([7], [-1], 1)
    assert grow_tree([], 4) == TokenTree([], [], 0)

"""The coupled rule, exhaustively over a tiny vocabulary, against a walk that knows nothing of nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from target_service.acceptance import Acceptance, accept_coupled, accept_known

VOCAB = 3
MAX_NODES = 3


def all_parents(num_nodes: int) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(-1, node) for node in range(num_nodes)))


def path_to(node: int, parents: Sequence[int]) -> tuple[int, ...]:
    return (*path_to(parents[node], parents), node) if node >= 0 else ()


def judge(
    tokens: Sequence[int], parents: Sequence[int] | None, target: Sequence[int]
) -> tuple[Acceptance, list[tuple[int, tuple[int, ...]]]]:
    """The outcome if the target wants `target`, position by position, and what it was asked."""
    asked = []

    def choose(node: int, path: Sequence[int]) -> int:
        asked.append((node, tuple(path)))
        return target[len(path)]

    return accept_coupled(tokens, parents, choose), asked


def check(tokens: Sequence[int], parents: Sequence[int] | None, target: Sequence[int]) -> None:
    outcome, asked = judge(tokens, parents, target)
    tree = parents if parents is not None else list(range(-1, len(tokens) - 1))
    # The oracle: every drafted text, and the longest of them that the target writes itself.
    texts = {tuple(tokens[n] for n in path_to(node, tree)): node for node in range(-1, len(tokens))}
    accepted = max((text for text in texts if text == tuple(target[: len(text)])), key=len)
    end = texts[accepted]
    assert outcome.accepted_nodes == list(path_to(end, tree))
    assert outcome.next_token_id == target[len(accepted)]
    assert outcome.is_bonus == (end not in tree)
    # Each position is decided once, in order, with the drafts before it.
    assert asked == [(node, tuple(tokens[n] for n in path_to(node, tree))) for node in (-1, *path_to(end, tree))]
    own_tokens = [target[len(path_to(node, tree))] for node in range(-1, len(tokens))]
    assert accept_known(tokens, parents, own_tokens) == outcome


@pytest.mark.parametrize("num_nodes", range(MAX_NODES + 1))
def test_every_chain_against_every_target(num_nodes: int) -> None:
    for tokens in itertools.product(range(VOCAB), repeat=num_nodes):
        for target in itertools.product(range(VOCAB), repeat=num_nodes + 1):
            check(tokens, None, target)


@pytest.mark.parametrize("num_nodes", range(MAX_NODES + 1))
def test_every_tree_against_every_target(num_nodes: int) -> None:
    trees = 0
    for parents in all_parents(num_nodes):
        for tokens in itertools.product(range(VOCAB), repeat=num_nodes):
            if len(set(zip(parents, tokens, strict=True))) < num_nodes:
                continue  # two equal siblings are refused before
            trees += 1
            for target in itertools.product(range(VOCAB), repeat=num_nodes + 1):
                check(tokens, parents, target)
    assert trees == (1, 3, 15, 105)[num_nodes]


def test_the_committed_text_is_the_targets_whatever_was_drafted() -> None:
    target = (2, 0, 1, 1)
    texts = set()
    for num_nodes in range(MAX_NODES + 1):
        for tokens in itertools.product(range(VOCAB), repeat=num_nodes):
            outcome, _ = judge(tokens, None, target)
            text = (*(tokens[node] for node in outcome.accepted_nodes), outcome.next_token_id)
            texts.add(text)
            assert text == target[: len(text)]
    assert len(texts) == MAX_NODES + 1


def test_a_chain_is_a_tree_with_one_branch() -> None:
    for tokens in itertools.product(range(VOCAB), repeat=MAX_NODES):
        for target in itertools.product(range(VOCAB), repeat=MAX_NODES + 1):
            assert judge(tokens, None, target) == judge(tokens, range(-1, MAX_NODES - 1), target)

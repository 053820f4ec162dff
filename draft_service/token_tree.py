"""A window that is a tree: a chain of draft tokens, and beside each of them what the target may choose in its place.

Runners-up cost the draft nothing, as they come from the same logits as the token of the chain, and the target no more
than further tokens of the chain do. So all nodes are chosen by how likely the target is to get there (as EAGLE-2 does,
Li et al. 2024, arXiv:2406.16858), with the one restriction that only the chain is drafted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Nodes in order: the chain first, then its runners-up."""

    token_ids: list[int]
    parents: list[int]
    """For each node the one that it follows, or -1."""
    chain_length: int


Level = Sequence[tuple[int, float]]
"""Tokens that the target may choose at one step of the chain, likeliest first, with their probabilities; the first is
the chain's."""


def grow_tree(levels: Sequence[Level], num_nodes: int) -> TokenTree:
    """The likeliest nodes of a chain with its runners-up.

    Args:
        levels: of each step.
        num_nodes: most nodes.
    """
    nodes = sorted(_nodes(levels), reverse=True)[:num_nodes]
    chain_length = sum(rank == 0 for _, _, rank, _ in nodes)
    token_ids = [levels[depth][0][0] for depth in range(chain_length)]
    parents = list(range(-1, chain_length - 1))
    for _, negative_depth, rank, token in nodes:
        if rank:
            token_ids.append(token)
            parents.append(-negative_depth - 1)
    return TokenTree(token_ids, parents, chain_length)


def is_grown(levels: Sequence[Level], num_nodes: int) -> bool:
    """Whether no step further down could give a node that belongs to the tree: all have less than the chain's end."""
    probabilities = sorted((node[0] for node in _nodes(levels)), reverse=True)
    chain = 1.0
    for level in levels:
        chain *= level[0][1]
    return len(probabilities) >= num_nodes and probabilities[num_nodes - 1] >= chain


def _nodes(levels: Sequence[Level]) -> list[tuple[float, int, int, int]]:
    """Probability, minus the depth, minus the rank and the token of each, so that the chain comes before its equals."""
    nodes = []
    before = 1.0
    for depth, level in enumerate(levels):
        for rank, (token, probability) in enumerate(level):
            # No more than the chain's own, whatever the model says: who is ranked behind comes behind.
            nodes.append((before * min(probability, level[0][1]), -depth, -rank, token))
        before *= level[0][1]
    return nodes

"""Acceptance: which draft tokens of a window become committed tokens, and which token follows them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Outcome of one window."""

    accepted_nodes: list[int]
    """Accepted nodes from the root down; for a chain 0, 1, 2, ..."""
    next_token_id: int
    """The target's own token behind them."""
    is_bonus: bool
    """True if no draft token was rejected on the way (an empty window included): a bonus, not a recovered token."""


def accept_coupled(
    draft_tokens: Sequence[int],
    parents: Sequence[int] | None,
    choose: Callable[[int, Sequence[int]], int],
) -> Acceptance:
    """Walk the window along the target's own choices (Daliri, Musco and Suresh 2024).

    What is committed is exactly what `choose` gives position by position, so it depends neither on the draft tokens nor
    on their number: drafts only let several positions be judged in one pass.

    Args:
        draft_tokens: the nodes of the window; siblings are distinct.
        parents: for each node the node it follows, or -1 for the committed prefix; None: a chain.
        choose: `choose(node, path)` is the target's token behind a node (-1: behind the committed prefix), where `path`
            are the draft tokens from the root to it. Called once for each position judged, in order.

    Returns:
        The outcome; `len(accepted_nodes) + 1` tokens are committed.
    """
    if parents is None:
        parents = range(-1, len(draft_tokens) - 1)
    accepted: list[int] = []
    path: list[int] = []
    node = -1
    while True:
        token = choose(node, path)
        children = [child for child, parent in enumerate(parents) if parent == node]
        matching = next((child for child in children if draft_tokens[child] == token), None)
        if matching is None:
            return Acceptance(accepted, token, is_bonus=not children)
        accepted.append(matching)
        path.append(token)
        node = matching

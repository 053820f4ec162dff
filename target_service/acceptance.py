"""Acceptance: which draft tokens of a window become committed tokens, and which token follows them."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from specdec.errors import InvalidArgumentError
from specdec.sampling.laws import DraftLaw, Draws, TargetLaw
from specdec.sampling.noise import Stream


@dataclass(slots=True)
class Acceptance:
    """Outcome of one window."""

    accepted_nodes: list[int]
    """Accepted nodes from the root down; for a chain 0, 1, 2, ..."""
    next_token_id: int
    """The target's own token behind them."""
    is_bonus: bool
    """True if no draft token was rejected on the way (an empty window included): a bonus, not a recovered token."""


CoupledWalk = Generator[tuple[int, Sequence[int]], int, Acceptance]
"""Yields a node (-1: the committed prefix) and the draft tokens up to it; see `accept_coupled`."""


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
    walk = coupled_walk(draft_tokens, parents)
    try:
        node, path = next(walk)
        while True:
            node, path = walk.send(choose(node, path))
    except StopIteration as end:
        outcome: Acceptance = end.value
        return outcome


def coupled_walk(draft_tokens: Sequence[int], parents: Sequence[int] | None) -> CoupledWalk:
    """`accept_coupled` step by step, for whoever chooses for many windows at once.

    It asks for the target's token behind a node and is sent that; what it asks with is changed by the next step.
    """
    path: list[int] = []
    if parents is None:
        for node, draft_token in enumerate(draft_tokens):
            token = yield node - 1, path
            if token != draft_token:
                return Acceptance(list(range(node)), token, is_bonus=False)
            path.append(token)
        length = len(draft_tokens)
        token = yield length - 1, path
        return Acceptance(list(range(length)), token, is_bonus=True)
    accepted: list[int] = []
    node = -1
    while True:
        token = yield node, path
        children = [child for child, parent in enumerate(parents) if parent == node]
        matching = next((child for child in children if draft_tokens[child] == token), None)
        if matching is None:
            return Acceptance(accepted, token, is_bonus=not children)
        accepted.append(matching)
        path.append(token)
        node = matching


def accept_known(draft_tokens: Sequence[int], parents: Sequence[int] | None, own_tokens: Sequence[int]) -> Acceptance:
    """`accept_coupled` where the target's token behind each node is known: `own_tokens[node + 1]`."""
    if parents is not None:
        return accept_coupled(draft_tokens, parents, lambda node, path: own_tokens[node + 1])
    length, most = 0, len(draft_tokens)
    while length < most and draft_tokens[length] == own_tokens[length]:
        length += 1
    return Acceptance(list(range(length)), own_tokens[length], is_bonus=length == most)


def accept_rejection(
    draft_tokens: Sequence[int],
    draft_laws: Sequence[DraftLaw],
    target_law: Callable[[int], TargetLaw],
    draws: Draws,
    base_length: int,
) -> Acceptance:
    """Accept each draft token with probability min(1, target / draft); at the first rejection sample the residual.

    Leviathan, Kalman and Matias 2023, algorithm 1; Chen et al. 2023, algorithm 2. The committed tokens follow the
    target's law exactly.

    Args:
        draft_tokens: the window, a chain.
        draft_laws: for each token the law it was sampled from, where it has non-zero weight.
        target_law: `target_law(i)` is the target's law behind the first `i` draft tokens, 0 <= i <= len(draft_tokens).
        draws: random decisions.
        base_length: position of the first draft token.
    """
    for index, (token, draft) in enumerate(zip(draft_tokens, draft_laws, strict=True)):
        target = target_law(index)
        if not draws.happens(
            target.weight(token) * draft.total, draft.weights[token] * target.total, base_length + index
        ):
            recovered = _sample_residual(target, draft, Fraction(1), draws, base_length + index)
            return Acceptance(list(range(index)), recovered, is_bonus=False)
    length = len(draft_tokens)
    bonus = target_law(length).sample(draws, base_length + length)
    return Acceptance(list(range(length)), bonus, is_bonus=True)


def accept_block(
    draft_tokens: Sequence[int],
    draft_laws: Sequence[DraftLaw],
    target_law: Callable[[int], TargetLaw],
    draws: Draws,
    base_length: int,
) -> Acceptance:
    """Judge the window as a whole: accept the longest prefix that its joint law allows.

    Sun et al. 2024, "Block verification accelerates speculative decoding", algorithm 2. The committed tokens follow the
    target's law exactly, and no fewer are accepted on average than by `accept_rejection`.

    Args: as `accept_rejection`.
    """
    targets: list[TargetLaw] = []
    # reach[i]: how probable the first i draft tokens still are under the target, relative to the draft, at most 1.
    reach = [Fraction(1)]
    for index, (token, draft) in enumerate(zip(draft_tokens, draft_laws, strict=True)):
        try:
            target = target_law(index)
        except InvalidArgumentError:
            # The rules leave no token behind this prefix. The window ends with it, and only if all of it is accepted
            # does the request fail: plain decoding would have come here too.
            break
        targets.append(target)
        ratio = Fraction(target.weight(token) * draft.total, draft.weights[token] * target.total)
        reach.append(min(reach[-1] * ratio, Fraction(1)))
    length = len(targets)
    for index in range(length, 0, -1):
        if index == length:
            chance = reach[index]
        else:
            residual = _residual_mass(targets[index], draft_laws[index], reach[index])
            # With no residual there is nothing to recover with, and a longer prefix is sure to be accepted.
            chance = residual / (residual + 1 - reach[index]) if residual else Fraction(0)
        if draws.happens(chance.numerator, chance.denominator, base_length + index - 1):
            break
    else:
        index = 0
    if index == length:
        bonus = target_law(length).sample(draws, base_length + length)
        return Acceptance(list(range(length)), bonus, is_bonus=True)
    recovered = _sample_residual(targets[index], draft_laws[index], reach[index], draws, base_length + index)
    return Acceptance(list(range(index)), recovered, is_bonus=False)


def _residual_mass(target: TargetLaw, draft: DraftLaw, reach: Fraction) -> Fraction:
    """Sum over all tokens of max(reach * target - draft, 0)."""
    inside, outside, scale = _residual_weights(target, draft, reach)
    return Fraction(sum(inside) + outside, scale)


def _sample_residual(target: TargetLaw, draft: DraftLaw, reach: Fraction, draws: Draws, position: int) -> int:
    """A token with probability proportional to max(reach * target - draft, 0)."""
    inside, outside, _ = _residual_weights(target, draft, reach)
    index = draws.pick([*inside, outside], position, Stream.RESIDUAL)
    if index < len(inside):
        return list(draft.weights)[index]
    return target.sample_outside(draft.weights, draws, position)


def _residual_weights(target: TargetLaw, draft: DraftLaw, reach: Fraction) -> tuple[list[int], int, int]:
    """The residual as integers: of each token in the draft's law, of all others together, and the scale of both."""
    target_factor = reach.numerator * draft.total
    draft_factor = reach.denominator * target.total
    shared = target.weights_of(draft.weights)
    inside = [
        max(target_factor * own - draft_factor * drafted, 0)
        for own, drafted in zip(shared, draft.weights.values(), strict=True)
    ]
    outside = target_factor * (target.total - sum(shared))
    return inside, outside, reach.denominator * target.total * draft.total

"""Checks of the coupled rule's walk: for every value of the noise the tokens are those of plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdec.errors import InvalidArgumentError
from specdec.sampling.laws import Draws
from specdec.sampling.noise import Stream
from target_service import acceptance
from tests.exactness.arithmetic_checks import NUM_CASES
from tests.exactness.explorer import explore
from tests.exactness.prefix_laws import DEAD_END, Prefix, PrefixLaws

_TREE_DEPTH = 2


class TargetChoices:
    """The target's own token behind every prefix: drawn once, by the target's law; what noise and logits come to.

    Nothing else is assumed of the noise, so what holds for every way these draws can fall holds for any noise.
    """

    def __init__(self, laws: PrefixLaws, draws: Draws) -> None:
        self.laws = laws
        self._draws = draws
        self._choices: dict[Prefix, int] = {}

    def behind(self, prefix: Prefix) -> int:
        """The token, as a drafter may guess it."""
        if prefix not in self._choices:
            self._choices[prefix] = self._draws.pick(
                self.laws.target_weights(prefix), len(prefix), Stream.TARGET, nth=len(self._choices)
            )
        return self._choices[prefix]

    def other_than(self, prefix: Prefix) -> int:
        """Another token than that."""
        return (self.behind(prefix) + 1) % self.laws.vocab_size

    def of_target(self, prefix: Prefix) -> int:
        """The token, as the target gives it; raises InvalidArgumentError at a dead end."""
        self.laws.target(prefix)
        return self.behind(prefix)


Window = tuple[list[int], list[int] | None]
"""Draft tokens and parents, as `accept_coupled` takes them."""
Drafting = Callable[[TargetChoices, Prefix], Window]
"""A drafter that knows what the target will choose: any way to draft is a special case."""


def nothing(choices: TargetChoices, committed: Prefix) -> Window:
    """An empty window."""
    return [], None


def all_right(choices: TargetChoices, committed: Prefix) -> Window:
    """A chain of the target's own tokens."""
    path = committed
    for _ in range(choices.laws.num_draft_tokens):
        path = (*path, choices.behind(path))
    return list(path[len(committed) :]), None


def first_wrong(choices: TargetChoices, committed: Prefix) -> Window:
    """A chain whose first token is wrong, and whose others would be right."""
    tokens, _ = all_right(choices, committed)
    return [choices.other_than(committed), *tokens[1:]], None


def last_wrong(choices: TargetChoices, committed: Prefix) -> Window:
    """A chain that is right up to its last token."""
    tokens, _ = all_right(choices, committed)
    return [*tokens[:-1], choices.other_than((*committed, *tokens[:-1]))], None


def tree_with_the_path(choices: TargetChoices, committed: Prefix) -> Window:
    """A tree with a wrong token before each right one, and children under both."""
    return _tree(choices, committed, lambda prefix: [choices.other_than(prefix), choices.behind(prefix)])


def tree_beside_the_path(choices: TargetChoices, committed: Prefix) -> Window:
    """A tree that has the target's first token, and below it only wrong ones."""
    return _tree(
        choices,
        committed,
        lambda prefix: [choices.behind(prefix)] if prefix == committed else [choices.other_than(prefix)],
    )


DRAFTINGS: tuple[Drafting, ...] = (
    nothing,
    all_right,
    first_wrong,
    last_wrong,
    tree_with_the_path,
    tree_beside_the_path,
)


def _tree(choices: TargetChoices, committed: Prefix, children: Callable[[Prefix], Sequence[int]]) -> Window:
    tokens: list[int] = []
    parents: list[int] = []
    nodes = [(-1, committed)]
    for _ in range(min(_TREE_DEPTH, choices.laws.num_draft_tokens)):
        grown = []
        for node, prefix in nodes:
            for token in children(prefix):
                parents.append(node)
                tokens.append(token)
                grown.append((len(tokens) - 1, (*prefix, token)))
        nodes = grown
    return tokens, parents


def check_coupled_is_exact() -> None:
    """Coupled rule: whatever is drafted, chain or tree, what is committed is what plain decoding gives.

    Token by token, for every way the target's choices can fall.
    """
    for case in range(NUM_CASES):
        laws = PrefixLaws(case)
        for drafting in DRAFTINGS:
            for committed, plain in explore(lambda draws: _two_texts(laws, drafting, draws)):  # noqa: B023
                assert committed == plain, f"{laws}, {drafting.__name__}: {committed} instead of {plain}"


def _two_texts(laws: PrefixLaws, drafting: Drafting, draws: Draws) -> tuple[Prefix, Prefix]:
    """What rounds commit, and what plain decoding does with the same choices."""
    choices = TargetChoices(laws, draws)
    length = laws.num_draft_tokens + 1
    rounds = _grown(length, lambda committed: _round(choices, committed, *drafting(choices, committed)))
    return rounds, _grown(length, lambda committed: (choices.of_target(committed),))


def _grown(length: int, step: Callable[[Prefix], Prefix]) -> Prefix:
    """The first tokens that come when each step adds some."""
    committed: Prefix = ()
    while len(committed) < length:
        try:
            committed = (*committed, *step(committed))
        except InvalidArgumentError:  # noqa: PERF203 - a handful of steps
            return DEAD_END
    return committed[:length]


def _round(choices: TargetChoices, committed: Prefix, draft_tokens: list[int], parents: list[int] | None) -> Prefix:
    chain = list(range(-1, len(draft_tokens) - 1))
    outcome = acceptance.accept_coupled(
        draft_tokens, parents, lambda _node, path: choices.of_target((*committed, *path))
    )
    accepted = outcome.accepted_nodes
    assert outcome.is_bonus == (not any(parent == (accepted or [-1])[-1] for parent in parents or chain))
    return (*(draft_tokens[node] for node in accepted), outcome.next_token_id)

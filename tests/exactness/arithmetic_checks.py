"""Checks of the rejection and block rules in exact arithmetic: all branches of the production code, in rationals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from specdec.errors import InvalidArgumentError
from specdec.sampling.laws import DraftLaw, Draws, TargetLaw
from target_service import acceptance
from target_service.acceptance import Acceptance
from tests.exactness.explorer import explore
from tests.exactness.prefix_laws import DEAD_END, JointLaw, Prefix, PrefixLaws

NUM_CASES = 84
"""Each of the six sizes with each of the seven kinds of laws, twice."""

Accept = Callable[[Sequence[int], Sequence[DraftLaw], Callable[[int], TargetLaw], Draws, int], Acceptance]


class RoundOutcome(NamedTuple):
    """What a round commits, and how."""

    tokens: Prefix
    num_accepted: int
    is_bonus: bool


def round_law(
    laws: PrefixLaws,
    accept: Accept,
    committed: Prefix,
    *,
    is_deterministic: bool,
    confidence_threshold: Fraction = Fraction(0),
) -> dict[RoundOutcome, Fraction]:
    """The exact law of one round behind `committed`, drafting included.

    Args:
        laws: of target and drafter.
        accept: the rule.
        committed: tokens the round stands on.
        is_deterministic: draft the most probable token and call it one-hot, instead of sampling.
        confidence_threshold: end the window before the product of the drafter's largest probabilities gets below it.
    """

    def run(draws: Draws) -> RoundOutcome:
        path: list[int] = []
        shipped: list[DraftLaw] = []
        survival = Fraction(1)
        for _ in range(laws.num_draft_tokens):
            law = laws.draft((*committed, *path))
            survival *= Fraction(max(law.weights.values()), law.total)
            if survival < confidence_threshold:
                break
            if is_deterministic:
                law = DraftLaw.one_hot(next(iter(law.weights)))
            shipped.append(law)
            path.append(law.sample(draws, len(committed) + len(path)))
        try:
            outcome = accept(
                path, shipped, lambda index: laws.target((*committed, *path[:index])), draws, len(committed)
            )
        except InvalidArgumentError:
            return RoundOutcome(DEAD_END, 0, is_bonus=False)
        accepted = outcome.accepted_nodes
        tokens = (*(path[node] for node in accepted), outcome.next_token_id)
        return RoundOutcome(tokens, len(accepted), outcome.is_bonus)

    return explore(run)


def two_rounds_law(
    laws: PrefixLaws, accept: Accept, *, is_deterministic: bool, confidence_threshold: Fraction = Fraction(0)
) -> JointLaw:
    """The exact joint law of K + 1 tokens that come out of two rounds; what is missing then is the target's."""
    length = laws.num_draft_tokens + 1
    committed: JointLaw = {(): Fraction(1)}
    for _ in range(2):
        grown: JointLaw = {}
        for prefix, so_far in committed.items():
            if len(prefix) >= length or prefix == DEAD_END:
                grown[prefix] = grown.get(prefix, Fraction(0)) + so_far
                continue
            # The next round's numbers depend on its base length, so they are independent of the last one's.
            of_round = round_law(
                laws, accept, prefix, is_deterministic=is_deterministic, confidence_threshold=confidence_threshold
            )
            for outcome, chance in of_round.items():
                tokens = DEAD_END if outcome.tokens == DEAD_END else (*prefix, *outcome.tokens)[:length]
                grown[tokens] = grown.get(tokens, Fraction(0)) + so_far * chance
        committed = grown
    return laws.completed(committed, length)


def check_rejection_is_exact() -> None:
    """Rejection rule: the joint law of two rounds is the target's, to the last digit."""
    _check_joint_law(acceptance.accept_rejection)


def check_block_is_exact() -> None:
    """Block rule: the joint law of two rounds is the target's, to the last digit."""
    _check_joint_law(acceptance.accept_block)


def check_windows_ended_by_confidence_are_exact() -> None:
    """Both rules, windows whose length depends on the tokens in them: the joint law of two rounds is the target's."""
    for threshold in (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)):
        _check_joint_law(acceptance.accept_rejection, threshold)
        _check_joint_law(acceptance.accept_block, threshold)


def _check_joint_law(accept: Accept, confidence_threshold: Fraction = Fraction(0)) -> None:
    for case in range(NUM_CASES):
        laws = PrefixLaws(case)
        expected = laws.target_joint(laws.num_draft_tokens + 1)
        for is_deterministic in (False, True):
            actual = two_rounds_law(
                laws, accept, is_deterministic=is_deterministic, confidence_threshold=confidence_threshold
            )
            tokens = set(actual) | set(expected)
            distance = sum(abs(actual.get(key, Fraction(0)) - expected.get(key, Fraction(0))) for key in tokens) / 2
            drafts = "deterministic" if is_deterministic else "sampled"
            assert distance == 0, f"{laws}, {drafts} drafts: total variation {float(distance):.3g}"


def check_block_accepts_no_fewer() -> None:
    """Block rule: never fewer tokens on average than by the rejection rule, and more in some case."""
    gains = []
    for case in range(NUM_CASES):
        laws = PrefixLaws(case)
        block, rejection = (
            sum(
                outcome.num_accepted * chance
                for outcome, chance in round_law(laws, accept, (), is_deterministic=False).items()
            )
            for accept in (acceptance.accept_block, acceptance.accept_rejection)
        )
        assert block >= rejection, f"{laws}: {float(block):.4f} against {float(rejection):.4f} tokens"
        gains.append(block - rejection)
    assert any(gains), "the block rule is nowhere better than the rejection rule"


def check_equal_laws_accept_everything() -> None:
    """Both rules: a drafter with the target's law has all K tokens accepted, and the round gives a bonus token."""
    for case in range(NUM_CASES):
        laws = PrefixLaws(case)
        if laws.kind != "equal":
            continue
        for accept in (acceptance.accept_rejection, acceptance.accept_block):
            for outcome in round_law(laws, accept, (), is_deterministic=False):
                is_whole = len(outcome.tokens) == laws.num_draft_tokens + 1
                assert is_whole and outcome.is_bonus, f"{laws}: a round gave {outcome}"  # noqa: PT018 - one claim

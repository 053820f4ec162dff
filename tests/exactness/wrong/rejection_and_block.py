"""Wrong variants of the rejection and block rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec.sampling.chooser import TokenChooser
from specdec.sampling.laws import CounterDraws, DraftLaw, Draws, TargetLaw
from specdec.sampling.noise import Stream
from target_service import acceptance, judge
from target_service.acceptance import Acceptance
from tests.exactness import arithmetic_checks as arithmetic
from tests.exactness import number_checks as numbers
from tests.exactness import service_checks as services
from tests.exactness.wrong.sabotage import sabotage


@sabotage(
    arithmetic.check_rejection_is_exact,
    arithmetic.check_block_is_exact,
    arithmetic.check_windows_ended_by_confidence_are_exact,
)
def no_residual(patch: pytest.MonkeyPatch) -> None:
    """At a rejection, the recovered token comes from the target's whole law."""

    def sample(target: TargetLaw, _draft: DraftLaw, _reach: object, draws: Draws, position: int) -> int:
        return target.sample(draws, position)

    patch.setattr(acceptance, "_sample_residual", sample)


@sabotage(arithmetic.check_rejection_is_exact, arithmetic.check_block_is_exact)
def residual_not_cut_at_zero(patch: pytest.MonkeyPatch) -> None:
    """The residual is |target - draft|."""
    patch.setattr(acceptance, "max", lambda difference, _zero: abs(difference), raising=False)


@sabotage(arithmetic.check_rejection_is_exact)
def residual_within_the_draft_law(patch: pytest.MonkeyPatch) -> None:
    """What a truncated draft law left out cannot be recovered, unless there is nothing else."""
    original = acceptance._residual_weights

    def residual_weights(*arguments: Any) -> tuple[list[int], int, int]:
        inside, outside, scale = original(*arguments)
        return inside, 0 if any(inside) else outside, scale

    patch.setattr(acceptance, "_residual_weights", residual_weights)


@sabotage(services.check_rejection_with_filters)
def residual_of_the_raw_law(patch: pytest.MonkeyPatch) -> None:
    """Tokens are accepted by the processed law, and recovered from the law before temperature and filters."""
    target_law = TokenChooser.target_law
    sample_residual = acceptance._sample_residual
    raw_laws: dict[TargetLaw, TargetLaw] = {}

    def noting_target_law(
        self: TokenChooser, logits: torch.Tensor, committed: Sequence[int], path: Sequence[int] = ()
    ) -> TargetLaw:
        law = target_law(self, logits, committed, path)
        raw_laws[law] = TargetLaw.from_logits(logits, is_greedy=False)
        return law

    patch.setattr(TokenChooser, "target_law", noting_target_law)
    patch.setattr(acceptance, "_sample_residual", lambda target, *others: sample_residual(raw_laws[target], *others))


@sabotage(arithmetic.check_rejection_is_exact, services.check_rejection_over_grpc)
def favourite_always_accepted(patch: pytest.MonkeyPatch) -> None:
    """The target's most probable token is accepted for sure, at a temperature above 0."""
    weight = TargetLaw.weight

    def lenient(self: TargetLaw, token_id: int) -> int:
        is_favourite = bool(self._weights[token_id] == self._weights.max())
        return 1 << 60 if is_favourite else weight(self, token_id)

    patch.setattr(TargetLaw, "weight", lenient)


@sabotage(arithmetic.check_rejection_is_exact, arithmetic.check_block_is_exact)
def no_chance_is_zero(patch: pytest.MonkeyPatch) -> None:
    """Each draft token has some chance, though the target may give it none."""
    weight = TargetLaw.weight
    patch.setattr(TargetLaw, "weight", lambda self, token_id: max(weight(self, token_id), 1))


@sabotage(numbers.check_counter_draws)
def accepted_at_equality(patch: pytest.MonkeyPatch) -> None:
    """`u <= ratio` instead of `u < ratio`."""
    happens = CounterDraws.happens
    patch.setattr(CounterDraws, "happens", lambda self, numerator, *others: happens(self, numerator + 1, *others))


@sabotage(arithmetic.check_equal_laws_accept_everything)
def no_bonus(patch: pytest.MonkeyPatch) -> None:
    """After full acceptance the last draft token is the target's own; right, but a token less."""
    accept_rejection = acceptance.accept_rejection

    def accept(draft_tokens: Sequence[int], *others: Any) -> Acceptance:
        outcome = accept_rejection(draft_tokens, *others)
        if outcome.is_bonus and draft_tokens:
            return Acceptance(outcome.accepted_nodes[:-1], draft_tokens[-1], is_bonus=False)
        return outcome

    _replace_rejection(patch, accept)


@sabotage(arithmetic.check_rejection_is_exact)
def bonus_from_the_draft(patch: pytest.MonkeyPatch) -> None:
    """The bonus token is sampled from the draft's last law."""
    accept_rejection = acceptance.accept_rejection

    def accept(
        draft_tokens: Sequence[int],
        draft_laws: Sequence[DraftLaw],
        target_law: Callable[[int], TargetLaw],
        *others: Any,
    ) -> Acceptance:
        def law(index: int) -> TargetLaw:
            if not index or index < len(draft_tokens):
                return target_law(index)
            weights = torch.zeros(max(draft_laws[-1].weights) + 1, dtype=torch.long)
            for token, weight in draft_laws[-1].weights.items():
                weights[token] = weight
            return TargetLaw(weights)

        return accept_rejection(draft_tokens, draft_laws, law, *others)

    _replace_rejection(patch, accept)


@sabotage(arithmetic.check_rejection_is_exact)
def accept_and_recover_by_one_number(patch: pytest.MonkeyPatch) -> None:
    """The recovered token is drawn with the number that rejected the draft token."""
    patch.setattr(acceptance, "Stream", SimpleNamespace(RESIDUAL=Stream.ACCEPT))


@sabotage(arithmetic.check_block_is_exact)
def block_reach_not_cut_at_one(patch: pytest.MonkeyPatch) -> None:
    """Block rule: what a token is more probable than the draft had it makes up for later ones."""
    patch.setattr(acceptance, "min", lambda product, _one: product, raising=False)


@sabotage(arithmetic.check_block_is_exact, arithmetic.check_windows_ended_by_confidence_are_exact)
def block_residual_of_one_position(patch: pytest.MonkeyPatch) -> None:
    """Block rule: the recovered token comes from the residual of the rejection rule."""
    sample_residual = acceptance._sample_residual
    patch.setattr(
        acceptance,
        "_sample_residual",
        lambda target, draft, _reach, *others: sample_residual(target, draft, type(_reach)(1), *others),
    )


@sabotage(services.check_rejection_with_ngram, services.check_block_with_ngram)
def guesses_taken_for_samples(patch: pytest.MonkeyPatch) -> None:
    """Deterministic drafts are judged as if they had been sampled from a uniform law."""
    uniform = DraftLaw(dict.fromkeys(range(len(services.TARGET)), 1), len(services.TARGET))
    patch.setattr(judge, "DraftLaw", SimpleNamespace(one_hot=lambda _token: uniform))


def _replace_rejection(patch: pytest.MonkeyPatch, accept: Callable[..., Acceptance]) -> None:
    patch.setattr(acceptance, "accept_rejection", accept)
    patch.setattr(judge, "accept_rejection", accept)


@sabotage(arithmetic.check_block_accepts_no_fewer)
def block_judges_one_token(patch: pytest.MonkeyPatch) -> None:
    """Block rule: only the first draft token is judged. The law is right; fewer tokens are accepted."""

    def accept(
        draft_tokens: Sequence[int], draft_laws: Sequence[DraftLaw], target_law: Callable[[int], TargetLaw], *rest: Any
    ) -> Acceptance:
        return acceptance.accept_rejection(draft_tokens[:1], draft_laws[:1], target_law, *rest)

    patch.setattr(acceptance, "accept_block", accept)


@sabotage(arithmetic.check_block_accepts_no_fewer)
def block_is_rejection(patch: pytest.MonkeyPatch) -> None:
    """Block rule: each draft token is judged by itself. The law is right; no more tokens are accepted."""
    patch.setattr(acceptance, "accept_block", acceptance.accept_rejection)

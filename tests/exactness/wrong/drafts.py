"""Wrong variants of how draft tokens are sampled, and of the law that travels with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from draft_service.drafters.causal_lm import CausalLMDrafter
from draft_service.drafters.window_growth import Growing, WindowGrowth
from draft_service.engine import DraftEngine
from draft_service.sequence import Draft, DraftSequence
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.laws import CounterDraws, DraftLaw, Draws
from specdec.sampling.noise import Stream
from tests.exactness import arithmetic_checks as arithmetic
from tests.exactness import service_checks as services
from tests.exactness.wrong.sabotage import sabotage

Append = Callable[[WindowGrowth, Growing, DraftSequence, Sequence[int], TokenChooser, torch.Tensor], None]


def _patch_draft(patch: pytest.MonkeyPatch, make: Callable[[Append], Append]) -> None:
    """Replace how a draft token is made; `make` gets the production code."""
    patch.setattr(WindowGrowth, "_append", make(WindowGrowth._append))


@sabotage(services.check_rejection_over_grpc, services.check_block_over_grpc)
def guess_shipped_as_a_sample(patch: pytest.MonkeyPatch) -> None:
    """The drafter takes its most probable token and ships the whole law."""
    patch.setattr(DraftLaw, "sample", lambda self, _draws, _position: next(iter(self.weights)))


@sabotage(arithmetic.check_rejection_is_exact, arithmetic.check_block_is_exact)
def uniform_samples(patch: pytest.MonkeyPatch) -> None:
    """Draft tokens are sampled from another law than the one they are judged by."""

    def sample(self: DraftLaw, draws: Draws, position: int) -> int:
        return list(self.weights)[draws.pick([1 for _ in self.weights], position, Stream.DRAFT)]

    patch.setattr(DraftLaw, "sample", sample)


@sabotage(services.check_rejection_with_temperature)
def raw_law_shipped(patch: pytest.MonkeyPatch) -> None:
    """The drafter samples with the request's rules and ships its law before them."""

    def make(append: Append) -> Append:
        def changed(
            self: WindowGrowth,
            window: Growing,
            sequence: DraftSequence,
            committed: Sequence[int],
            chooser: TokenChooser,
            logits: torch.Tensor,
        ) -> None:
            append(self, window, sequence, committed, chooser, logits)
            window.laws[-1] = DraftLaw.from_logits(logits, self._max_law_size)

        return changed

    _patch_draft(patch, make)


@sabotage(services.check_rejection_with_truncated_drafts)
def law_truncated_after_sampling(patch: pytest.MonkeyPatch) -> None:
    """The drafter samples from its whole law and ships the most probable tokens, and the sampled one."""

    def changed(
        self: WindowGrowth,
        window: Growing,
        sequence: DraftSequence,
        committed: Sequence[int],
        chooser: TokenChooser,
        logits: torch.Tensor,
    ) -> None:
        whole = chooser.draft_law(logits, committed, window.token_ids, len(logits))
        draws = CounterDraws(sequence.params.seed, len(committed))
        token = whole.sample(draws, len(committed) + len(window.token_ids))
        kept = dict(list(whole.weights.items())[: self._max_law_size]) | {token: whole.weights[token]}
        window.token_ids.append(token)
        window.laws.append(DraftLaw(kept, sum(kept.values())))

    _patch_draft(patch, lambda _: changed)


@sabotage(services.check_rejection_with_memory)
def memory_read_under_every_rule(patch: pytest.MonkeyPatch) -> None:
    """Drafts follow what another request with the same seed wrote, which tells how its random numbers fell."""
    patch.setattr(DraftSequence, "may_follow_others", True)


@sabotage(services.check_rejection_with_combined, services.check_block_with_combined)
def source_chosen_after_sampling(patch: pytest.MonkeyPatch) -> None:
    """Lookup makes the window after all if the model drew a token that it thinks improbable."""
    advance = CausalLMDrafter.advance

    def changed(self: CausalLMDrafter, drafts: Sequence[Draft]) -> None:
        advance(self, drafts)
        for draft in drafts:
            if draft.is_done and any(
                law.weights[token] < 0.4 * law.total for token, law in zip(draft.token_ids, draft.laws, strict=True)
            ):
                draft.token_ids, draft.laws = draft.sequence.token_ids[1:3], []

    patch.setattr(CausalLMDrafter, "advance", changed)


@sabotage(services.check_rejection_with_sure_drafts)
def improbable_drafts_dropped(patch: pytest.MonkeyPatch) -> None:
    """A proposal ends before its first improbable token, which was sampled already."""
    answer = DraftEngine._answer

    def changed(self: DraftEngine, draft: Draft) -> None:
        for index, (token, law) in enumerate(zip(draft.token_ids, draft.laws, strict=True)):
            if law.weights[token] < 0.4 * law.total:
                del draft.token_ids[index:], draft.laws[index:]
                break
        answer(self, draft)

    patch.setattr(DraftEngine, "_answer", changed)


@sabotage(services.check_rejection_with_confidence, services.check_block_with_confidence)
def confidence_of_the_sampled_token(patch: pytest.MonkeyPatch) -> None:
    """A window ends where the token that was sampled is improbable, as transformers decides it."""

    def changed(
        self: WindowGrowth,
        window: Growing,
        sequence: DraftSequence,
        committed: Sequence[int],
        chooser: TokenChooser,
        logits: torch.Tensor,
    ) -> bool:
        law = chooser.draft_law(logits, committed, window.token_ids, self._max_law_size)
        draws = CounterDraws(sequence.params.seed, len(committed))
        token = law.sample(draws, len(committed) + len(window.token_ids))
        window.survival *= law.weights[token] / law.total
        if window.survival < self._confidence_threshold:
            return False
        self._append(window, sequence, committed, chooser, logits)
        return True

    patch.setattr(WindowGrowth, "grow", changed)

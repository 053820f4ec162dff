"""More wrong variants: of what drafters send, of the rules on one side only, and of the engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from draft_service.drafters.causal_lm import CausalLMDrafter
from draft_service.engine import DraftEngine
from draft_service.sequence import Draft
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.laws import CounterDraws, DraftLaw, Draws
from specdec.sampling.noise import Stream
from specdec.sampling.params import SamplingParams
from target_service import judge
from target_service.judge import Judge
from tests.exactness import arithmetic_checks as arithmetic
from tests.exactness import coupled_id_checks as coupled_ids
from tests.exactness import service_checks as services
from tests.exactness.sabotage import SABOTAGES, caught_by

__all__ = ["SABOTAGES"]

DraftToken = Callable[[CausalLMDrafter, Draft, TokenChooser, torch.Tensor], None]


def _patch_draft(patch: pytest.MonkeyPatch, make: Callable[[DraftToken], DraftToken]) -> None:
    """Replace how a draft token is made; `make` gets the production code."""
    patch.setattr(CausalLMDrafter, "_draft_token", make(CausalLMDrafter._draft_token))


@caught_by(services.check_rejection_over_grpc, services.check_block_over_grpc)
def guess_shipped_as_a_sample(patch: pytest.MonkeyPatch) -> None:
    """The drafter takes its most probable token and ships the whole law."""
    patch.setattr(DraftLaw, "sample", lambda self, _draws, _position: next(iter(self.weights)))


@caught_by(arithmetic.check_rejection_is_exact, arithmetic.check_block_is_exact)
def uniform_samples(patch: pytest.MonkeyPatch) -> None:
    """Draft tokens are sampled from another law than the one they are judged by."""

    def sample(self: DraftLaw, draws: Draws, position: int) -> int:
        return list(self.weights)[draws.pick([1 for _ in self.weights], position, Stream.DRAFT)]

    patch.setattr(DraftLaw, "sample", sample)


@caught_by(services.check_rejection_with_filters)
def raw_law_shipped(patch: pytest.MonkeyPatch) -> None:
    """The drafter samples with the request's rules and ships its law before them."""

    def make(draft_token: DraftToken) -> DraftToken:
        def changed(self: CausalLMDrafter, draft: Draft, chooser: TokenChooser, logits: torch.Tensor) -> None:
            draft_token(self, draft, chooser, logits)
            draft.laws[-1] = DraftLaw.from_logits(logits, self._max_law_size)

        return changed

    _patch_draft(patch, make)


# Not registered yet: with the texts that they draw now, the checks meant for it are too weak to see it.
def law_truncated_after_sampling(patch: pytest.MonkeyPatch) -> None:
    """The drafter samples from its whole law and ships the most probable tokens, and the sampled one."""

    def changed(self: CausalLMDrafter, draft: Draft, chooser: TokenChooser, logits: torch.Tensor) -> None:
        committed = draft.sequence.token_ids
        whole = chooser.draft_law(logits, committed, draft.token_ids, len(logits))
        draws = CounterDraws(draft.sequence.params.seed, draft.base_length)
        token = whole.sample(draws, len(committed) + len(draft.token_ids))
        kept = dict(list(whole.weights.items())[: self._max_law_size]) | {token: whole.weights[token]}
        draft.token_ids.append(token)
        draft.laws.append(DraftLaw(kept, sum(kept.values())))

    _patch_draft(patch, lambda _: changed)


# Not registered yet: with the texts that they draw now, the checks meant for it are too weak to see it.
def improbable_drafts_dropped(patch: pytest.MonkeyPatch) -> None:
    """Draft tokens that turned out improbable are dropped from the end of the proposal, after they were sampled."""
    answer = DraftEngine._answer

    def changed(self: DraftEngine, draft: Draft) -> None:
        while draft.laws and draft.laws[-1].weights[draft.token_ids[-1]] < 0.4 * draft.laws[-1].total:
            draft.token_ids.pop()
            draft.laws.pop()
        answer(self, draft)

    patch.setattr(DraftEngine, "_answer", changed)


# Sampling rules.


def _patch_target_params(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    """The target goes by other sampling rules than the request's."""

    def chooser(params: SamplingParams, *others: Any) -> TokenChooser:
        return TokenChooser(replace(params, **changes), *others)

    patch.setattr(judge, "TokenChooser", chooser)


# Not registered yet: with the texts that they draw now, the checks meant for it are too weak to see it.
def target_ignores_temperature(patch: pytest.MonkeyPatch) -> None:
    """The temperature reaches the drafter only."""
    _patch_target_params(patch, temperature=1.0)


@caught_by(services.check_rejection_with_filters)
def target_ignores_filters(patch: pytest.MonkeyPatch) -> None:
    """Top-k and top-p reach the drafter only."""
    _patch_target_params(patch, top_k=0, top_p=1.0, min_p=0.0)


@caught_by(services.check_rejection_with_penalties, services.check_coupled_with_penalties)
def target_ignores_penalties(patch: pytest.MonkeyPatch) -> None:
    """Penalties reach the drafter only."""
    _patch_target_params(patch, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)


@caught_by(services.check_rejection_with_penalties, services.check_coupled_with_penalties)
def penalties_frozen_at_the_window(patch: pytest.MonkeyPatch) -> None:
    """Penalties count committed tokens, not the draft tokens before a position."""
    process = TokenChooser.process
    patch.setattr(TokenChooser, "process", lambda self, logits, committed, path=(): process(self, logits, committed))


@caught_by(services.check_rejection_with_penalties)
def output_penalties_on_the_prompt(patch: pytest.MonkeyPatch) -> None:
    """Frequency and presence penalties count the prompt too."""
    patch.setattr(judge, "TokenChooser", lambda params, _prompt_length, device: TokenChooser(params, 0, device))


@caught_by(services.check_rejection_with_lists, services.check_block_with_filters)
def rules_at_the_first_position_only(patch: pytest.MonkeyPatch) -> None:
    """Rules reach the first position of a window, and neither the others nor the bonus."""
    process = TokenChooser.process
    patch.setattr(
        TokenChooser,
        "process",
        lambda self, logits, committed, path=(): logits if path else process(self, logits, committed),
    )


# Rows and caches.


@caught_by(services.check_rejection_over_grpc, services.check_coupled_over_grpc, coupled_ids.check_coupled_ids)
def logits_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A draft token is judged by the logits behind it."""
    decide = Judge.decide
    patch.setattr(
        Judge,
        "decide",
        lambda self, committed, window, logits: decide(self, committed, window, torch.cat([logits[1:], logits[-1:]])),
    )


@caught_by(services.check_rejection_over_grpc, coupled_ids.check_coupled_ids)
def cache_not_cut_back(patch: pytest.MonkeyPatch) -> None:
    """After a rejection the cache keeps the row of the rejected token in place of the recovered one's."""

    def keep_rows(self: SequenceCache, base: int, rows: list[int]) -> None:
        self.truncate(min(base + len(rows) + 1, self.length))

    patch.setattr(SequenceCache, "keep_rows", keep_rows)


@caught_by(coupled_ids.check_coupled_ids)
def tree_rows_not_moved(patch: pytest.MonkeyPatch) -> None:
    """After a tree the cache keeps its first rows, not those of the accepted nodes."""
    patch.setattr(SequenceCache, "keep_rows", lambda self, base, rows: self.truncate(base + len(rows)))


@caught_by(coupled_ids.check_coupled_acceptance)
def draft_cache_not_cut_back(patch: pytest.MonkeyPatch) -> None:
    """The drafter keeps the rows of its rejected tokens."""
    patch.setattr(CausalLMDrafter, "commit", lambda *_: None)


@caught_by(services.check_rejection_over_grpc, services.check_coupled_over_grpc, coupled_ids.check_coupled_ids)
def padding_left_in(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint's padding rows take part in the softmax."""
    init = ModelRunner.__init__
    patch.setattr(ModelRunner, "__init__", lambda self, model, vocab_size: init(self, model, 1 << 20))

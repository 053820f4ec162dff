"""Wrong variants of applying temperature, filters and penalties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specdec.sampling.chooser import TokenChooser
from specdec.sampling.params import SamplingParams
from target_service import judge
from tests.exactness import coupled_id_checks as coupled_ids
from tests.exactness import service_checks as services
from tests.exactness.wrong.sabotage import sabotage


def _patch_target_params(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    """The target goes by other sampling rules than the request's."""

    def chooser(params: SamplingParams, *others: Any) -> TokenChooser:
        return TokenChooser(replace(params, **changes), *others)

    patch.setattr(judge, "TokenChooser", chooser)


@sabotage(services.check_rejection_with_temperature, coupled_ids.check_coupled_ids)
def target_ignores_temperature(patch: pytest.MonkeyPatch) -> None:
    """The temperature reaches the drafter only."""
    _patch_target_params(patch, temperature=1.0)


@sabotage(services.check_rejection_with_typical_p)
def target_ignores_typical_p(patch: pytest.MonkeyPatch) -> None:
    """Locally typical sampling reaches the drafter only."""
    _patch_target_params(patch, typical_p=1.0)


@sabotage(services.check_rejection_with_filters, services.check_coupled_with_filters)
def target_ignores_filters(patch: pytest.MonkeyPatch) -> None:
    """Top-k and top-p reach the drafter only."""
    _patch_target_params(patch, top_k=0, top_p=1.0, min_p=0.0)


@sabotage(services.check_rejection_with_penalties, services.check_coupled_with_penalties)
def target_ignores_penalties(patch: pytest.MonkeyPatch) -> None:
    """Penalties reach the drafter only."""
    _patch_target_params(patch, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)


@sabotage(
    services.check_rejection_with_penalties,
    services.check_block_with_penalties,
    services.check_coupled_with_penalties,
)
def penalties_frozen_at_the_window(patch: pytest.MonkeyPatch) -> None:
    """Penalties count committed tokens, not the draft tokens before a position."""
    process = TokenChooser._process
    patch.setattr(TokenChooser, "_process", lambda self, logits, committed, _path: process(self, logits, committed, ()))


@sabotage(services.check_rejection_with_penalties)
def output_penalties_on_the_prompt(patch: pytest.MonkeyPatch) -> None:
    """Frequency and presence penalties count the prompt too."""
    patch.setattr(judge, "TokenChooser", lambda params, _prompt_length, device: TokenChooser(params, 0, device))


@sabotage(services.check_rejection_with_lists, services.check_block_with_filters)
def rules_at_the_first_position_only(patch: pytest.MonkeyPatch) -> None:
    """Rules reach the first position of a window, and neither the others nor the bonus."""
    process = TokenChooser.process
    patch.setattr(
        TokenChooser,
        "process",
        lambda self, logits, committed, path=(): logits if path else process(self, logits, committed),
    )

"""Wrong variants of the coupled rule's walk and of its noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec.sampling import chooser as chooser_module
from specdec.sampling.chooser import TokenChooser, choose_rows
from specdec.sampling.noise import Stream, gumbel_argmax, noise_key, noise_keys, seed_key
from specdec.sampling.params import SamplingParams
from target_service import acceptance, engine, together
from target_service.acceptance import Acceptance
from target_service.judge import DraftWindow, Judge
from target_service.sequence import PendingRound
from target_service.together import outcomes_together
from tests.exactness import coupled_checks as coupled
from tests.exactness import coupled_id_checks as coupled_ids
from tests.exactness import service_checks as services
from tests.exactness.wrong.sabotage import sabotage

Choose = Callable[[int, Sequence[int]], int]


@sabotage(coupled.check_coupled_is_exact)
def first_draft_token_unjudged(patch: pytest.MonkeyPatch) -> None:
    """The first draft token is committed as it comes, and judging begins behind it."""
    accept_coupled = acceptance.accept_coupled

    def accept(draft_tokens: Sequence[int], parents: Sequence[int] | None, choose: Choose) -> Acceptance:
        return accept_coupled(
            draft_tokens,
            parents,
            lambda node, path: draft_tokens[0] if node < 0 < len(draft_tokens) else choose(node, path),
        )

    patch.setattr(acceptance, "accept_coupled", accept)


@sabotage(coupled.check_coupled_is_exact)
def recovered_called_bonus(patch: pytest.MonkeyPatch) -> None:
    """The token behind the accepted ones is called a bonus whenever something was accepted. The text is right."""
    accept_coupled = acceptance.accept_coupled

    def accept(draft_tokens: Sequence[int], parents: Sequence[int] | None, choose: Choose) -> Acceptance:
        outcome = accept_coupled(draft_tokens, parents, choose)
        return replace(outcome, is_bonus=bool(outcome.accepted_nodes))

    patch.setattr(acceptance, "accept_coupled", accept)


@sabotage(coupled.check_coupled_is_exact)
def any_node_for_a_child(patch: pytest.MonkeyPatch) -> None:
    """The walk through a tree goes on at any later node with the right token, whatever it follows."""

    def accept(draft_tokens: Sequence[int], _parents: Sequence[int] | None, choose: Choose) -> Acceptance:
        accepted: list[int] = []
        path: list[int] = []
        while True:
            node = accepted[-1] if accepted else -1
            token = choose(node, path)
            later = [index for index in range(node + 1, len(draft_tokens)) if draft_tokens[index] == token]
            if not later:
                return Acceptance(accepted, token, is_bonus=node == len(draft_tokens) - 1)
            accepted.append(later[0])
            path.append(token)

    patch.setattr(acceptance, "accept_coupled", accept)


@sabotage(coupled_ids.check_coupled_ids, services.check_coupled_over_grpc)
def noise_by_index_in_the_window(patch: pytest.MonkeyPatch) -> None:
    """The noise of a position depends on its place in the window."""

    def choose(self: TokenChooser, logits: torch.Tensor, committed: Sequence[int], path: Sequence[int] = ()) -> int:
        processed = self.process(logits, committed, path)
        return gumbel_argmax(processed, noise_key(self._seed, len(path), Stream.TARGET))

    def choose_together(
        rounds: Sequence[PendingRound],
        asked: dict[int, tuple[int, Sequence[int]]],
        starts: Sequence[int],
        rows: torch.Tensor,
    ) -> list[int | None]:
        choosers = [rounds[number].sequence.judge.chooser for number in asked]
        places = [starts[number] + node + 1 for number, (node, _) in asked.items()]
        return choose_rows(choosers, rows[places], [len(path) for _, path in asked.values()])

    patch.setattr(TokenChooser, "choose", choose)
    patch.setattr(together, "_choose", choose_together)


@sabotage(coupled_ids.check_coupled_ids)
def noise_by_k(patch: pytest.MonkeyPatch) -> None:
    """The noise depends on the size of the window. The law is right; the text is no function of the seed."""
    decide = Judge.decide

    def reseed(judge: Judge, window: DraftWindow) -> None:
        judge.chooser._seed = judge._params.seed + 1000 * len(window.token_ids)
        judge.chooser.seed_key = seed_key(judge.chooser._seed)

    def seeded(self: Judge, committed: Sequence[int], window: DraftWindow, logits: torch.Tensor) -> Acceptance:
        reseed(self, window)
        return decide(self, committed, window, logits)

    def seeded_together(rounds: Sequence[PendingRound], logits: Sequence[torch.Tensor]) -> list[Acceptance | None]:
        for pending in rounds:
            reseed(pending.sequence.judge, pending.window)
        return outcomes_together(rounds, logits)

    patch.setattr(Judge, "decide", seeded)
    patch.setattr(engine, "outcomes_together", seeded_together)


@sabotage(coupled_ids.check_coupled_acceptance)
def draft_by_another_stream(patch: pytest.MonkeyPatch) -> None:
    """The drafter draws its own noise. Every token is right; fewer are accepted."""

    class Own(TokenChooser):
        def __init__(self, params: SamplingParams, *others: Any) -> None:
            super().__init__(replace(params, seed=params.seed + 1), *others)

    patch.setattr("draft_service.drafters.causal_lm.TokenChooser", Own)


@sabotage(services.check_coupled_over_grpc, services.check_coupled_with_ngram, coupled_ids.check_coupled_ids)
def seed_ignored(patch: pytest.MonkeyPatch) -> None:
    """All requests have the same noise."""
    patch.setattr(chooser_module, "noise_key", lambda _seed, position, stream: noise_key(0, position, stream))
    patch.setattr(
        chooser_module,
        "noise_keys",
        lambda keys, positions, stream: noise_keys([seed_key(0)] * len(keys), positions, stream),
    )

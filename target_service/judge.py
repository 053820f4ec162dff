"""From the logits of a window to its verdict, by the rule that the request chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.errors import DataLossError
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.laws import CounterDraws, DraftLaw, TargetLaw
from specdec.sampling.noise import first_highest_of_rows
from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2, sampling_pb2
from target_service.acceptance import Acceptance, accept_block, accept_coupled, accept_rejection
from target_service.logprobs import token_logprobs


@dataclass(slots=True)
class DraftWindow:
    """The draft tokens of one round."""

    token_ids: list[int]
    parents: list[int] | None = None
    """See `accept_coupled`; None: a chain."""
    laws: list[DraftLaw] | None = None
    """What each token was sampled from; None: deterministic drafts, or a rule that does not ask."""


class Judge:
    """Judges the windows of one request.

    Args:
        params: the request's sampling rules.
        prompt_length: tokens of the prompt.
        rule: one of `specdec.sampling.params.ACCEPTANCE_RULES`.
        device: of the logits.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_length: int,
        rule: model_pb2.AcceptanceRule.ValueType,
        device: torch.device,
    ) -> None:
        self._params = params
        self._rule = rule
        self.chooser = TokenChooser(params, prompt_length, device)
        """Of the target's own tokens."""
        self.is_plain = rule == model_pb2.ACCEPTANCE_RULE_COUPLED and self.chooser.is_plain
        """Whether the highest logit of each row is all that decides."""
        self.chooses_by_rows = rule == model_pb2.ACCEPTANCE_RULE_COUPLED and not self.chooser.reads_history
        """Whether the target's token behind a node depends on nothing but its logits and its position."""
        self.gives_logprobs = params.num_logprobs is not None
        """Whether the request asks for log-probabilities."""

    def decide(
        self,
        committed: Sequence[int],
        window: DraftWindow,
        logits: torch.Tensor,
    ) -> Acceptance:
        """Which draft tokens are accepted, and what follows them.

        Args:
            committed: committed tokens that the window stands on.
            window: what to judge.
            logits: (draft tokens + 1, vocab_size), float32; row 0 judges the first node, row i + 1 what follows node i.

        Raises:
            InvalidArgumentError: the request's rules leave no token.
            DataLossError: the model computed no numbers.
        """
        try:
            return self._accept(committed, window, logits)
        except FloatingPointError as error:
            raise DataLossError(f"{error}; the target needs another dtype, or intact weights") from error

    def logprobs(
        self, committed: Sequence[int], window: DraftWindow, logits: torch.Tensor, outcome: Acceptance
    ) -> list[sampling_pb2.TokenLogprobs]:
        """Those of the accepted tokens and the next one, where it `gives_logprobs`; arguments as in `decide`."""
        logprobs = []
        path = [window.token_ids[node] for node in outcome.accepted_nodes]
        nodes = [-1, *outcome.accepted_nodes]
        for depth, token in enumerate([*path, outcome.next_token_id]):
            row = logits[nodes[depth] + 1]
            processed = None
            if not self._params.is_greedy:
                processed = self.chooser.process(row, committed, path[:depth])
            logprobs.append(token_logprobs(token, row, processed, self._params.num_logprobs or 0))
        return logprobs

    def _accept(
        self,
        committed: Sequence[int],
        window: DraftWindow,
        logits: torch.Tensor,
    ) -> Acceptance:
        if self.is_plain:
            rows = list(zip(*first_highest_of_rows(logits), strict=True))
            plainly = self.chooser.choose_plainly
            return accept_coupled(window.token_ids, window.parents, lambda node, path: plainly(rows[node + 1]))
        if self._rule == model_pb2.ACCEPTANCE_RULE_COUPLED:
            return accept_coupled(
                window.token_ids,
                window.parents,
                lambda node, path: self.chooser.choose(logits[node + 1], committed, path),
            )
        accept = accept_rejection if self._rule == model_pb2.ACCEPTANCE_RULE_REJECTION else accept_block
        laws = window.laws if window.laws is not None else [DraftLaw.one_hot(token) for token in window.token_ids]

        def target_law(index: int) -> TargetLaw:
            return self.chooser.target_law(logits[index], committed, window.token_ids[:index])

        draws = CounterDraws(self._params.seed, len(committed))
        return accept(window.token_ids, laws, target_law, draws, len(committed))

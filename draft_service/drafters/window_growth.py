"""The next token of a window, by a draft model's logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from draft_service.sequence import DraftSequence
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.laws import CounterDraws, DraftLaw
from specdec.v1 import model_pb2


class Growing(Protocol):
    """A window in the making."""

    token_ids: list[int]
    laws: list[DraftLaw]
    survival: float


class WindowGrowth:
    """Appends tokens: a function of the committed tokens, the window so far, the request and the logits, nothing else.

    So it does not matter when a window is made, and for which round.

    Args:
        max_law_size: most tokens of the law that a draft token is sampled from, where the acceptance rule needs one.
        confidence_threshold: a window ends before it is less likely than this to be right to its end; 0: never.
    """

    def __init__(self, *, max_law_size: int, confidence_threshold: float) -> None:
        self._max_law_size = max_law_size
        self._confidence_threshold = confidence_threshold

    def grow(
        self,
        window: Growing,
        sequence: DraftSequence,
        committed: Sequence[int],
        chooser: TokenChooser,
        logits: torch.Tensor,
    ) -> bool:
        """Append one token: the target's likely choice (coupled rule), or a sample with the law it came from.

        Args:
            window: continues `committed`.
            sequence: whose it is; its own committed tokens are not read.
            committed: tokens committed when the window is judged.
            chooser: of the sequence.
            logits: (vocab_size,), behind the last token of the window.

        Returns:
            False: the window ends here, without another token.

        Raises:
            InvalidArgumentError: the request's rules leave no token.
            FloatingPointError: the model gave no numbers.
        """
        if self._is_hopeless(window, committed, chooser, logits):
            return False
        self._append(window, sequence, committed, chooser, logits)
        return True

    def _append(
        self,
        window: Growing,
        sequence: DraftSequence,
        committed: Sequence[int],
        chooser: TokenChooser,
        logits: torch.Tensor,
    ) -> None:
        if sequence.rule == model_pb2.ACCEPTANCE_RULE_COUPLED:
            window.token_ids.append(chooser.choose(logits, committed, window.token_ids))
            return
        law = chooser.draft_law(logits, committed, window.token_ids, self._max_law_size)
        draws = CounterDraws(sequence.params.seed, len(committed))
        window.token_ids.append(law.sample(draws, len(committed) + len(window.token_ids)))
        window.laws.append(law)

    def _is_hopeless(
        self, window: Growing, committed: Sequence[int], chooser: TokenChooser, logits: torch.Tensor
    ) -> bool:
        """Whether the window ends before its next token.

        Decided by the laws alone: the product of their largest probabilities along the window. The tokens of the window
        are judged, so laws may depend on them; the next token must have no say in whether it is judged, or the
        rejection and block rules would give another law (transformers' `assistant_confidence_threshold` asks it).
        """
        if not self._confidence_threshold:
            return False
        window.survival *= chooser.confidence(logits, committed, window.token_ids)
        return window.survival < self._confidence_threshold

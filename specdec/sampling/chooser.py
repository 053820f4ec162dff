"""The token a model chooses at a position: what the coupled rule compares, on both sides of the wire."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec.errors import InvalidArgumentError
from specdec.sampling.noise import Stream, gumbel_argmax, noise_key
from specdec.sampling.params import SamplingParams
from specdec.sampling.processors import LogitsRules


class Choice(NamedTuple):
    """A token and the law it was chosen by."""

    token_id: int
    processed_logits: torch.Tensor
    """(vocab_size,), float32; their softmax is the law at temperature > 0."""
    is_sampled: bool
    """False at temperature 0, where the law is all on one token."""


class TokenChooser:
    """Chooses tokens for one request: argmax of processed logits plus the noise of the position.

    The noise is a function of the request's seed, the absolute position and the token, so a drafter with logits close
    to the target's chooses the same tokens. At temperature 0 there is no noise and the choice is greedy.

    Args:
        params: the request's rules and seed.
        prompt_length: tokens of the prompt.
        device: of the logits.
    """

    def __init__(self, params: SamplingParams, prompt_length: int, device: torch.device) -> None:
        self._rules = LogitsRules(params, prompt_length, device)
        self._seed = params.seed
        self._is_greedy = params.is_greedy

    def choose(self, logits: torch.Tensor, committed: Sequence[int], path: Sequence[int] = ()) -> Choice:
        """The token at the position behind `committed` and `path`.

        Args:
            logits: (vocab_size,), float32, of that position.
            committed: committed tokens.
            path: draft tokens that follow them.

        Returns:
            The token and the law it was chosen by.

        Raises:
            InvalidArgumentError: the request's rules exclude every token at this position.
            FloatingPointError: the model gave NaN.
        """
        history = [*committed, *path] if self._rules.reads_history else ()
        processed = self._rules.apply(logits, history)
        if self._is_greedy:
            token = int(processed.argmax())
        else:
            token = gumbel_argmax(processed, noise_key(self._seed, len(committed) + len(path), Stream.TARGET))
        score = float(processed[token])
        if math.isnan(score):
            raise FloatingPointError("the model's logits are not numbers")
        if score == -math.inf:
            raise InvalidArgumentError("the sampling rules exclude every token at some position; relax them")
        return Choice(token, processed, not self._is_greedy)

"""Probability laws with integer weights, so that everything decided by them is exact rational arithmetic.

Floating-point rounding would make an accept test or a residual slightly wrong, differently on every device. Instead
each law is rounded once, when it is made, to integer weights; from there on sampling, acceptance and residuals are
exact. What rounding costs is bounded: at most 2**-41 of probability for each token of the target, and nothing for the
draft, since the rounded law is the one that is sampled from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from specdec.errors import InvalidArgumentError
from specdec.sampling.noise import Stream, below
from specdec.sampling.params import MAX_DRAFT_LAW_SIZE
from specdec.v1 import model_pb2

_TARGET_SCALE = 2.0**40
_DRAFT_SCALE = (1 << 16) - 1


class Draws(Protocol):
    """Where random decisions come from: a counter-based generator here, an explorer of all branches in the proofs."""

    def happens(self, numerator: int, denominator: int, position: int) -> bool:
        """True with probability min(1, numerator / denominator); the accept test of a position."""

    def pick(self, weights: torch.Tensor | list[int], position: int, stream: Stream, nth: int = 0) -> int:
        """An index with probability proportional to its weight; `nth` tells several picks at one position apart."""


class CounterDraws:
    """Random decisions of one round: a pure function of (seed, base length, position, stream).

    The base length is part of it because a round may look at a position, reject it and leave it to the next round,
    which must not decide by the same numbers again.
    """

    def __init__(self, seed: int, base_length: int) -> None:
        self._seed = seed
        self._base_length = base_length

    def happens(self, numerator: int, denominator: int, position: int) -> bool:
        """See `Draws`."""
        return below(denominator, self._seed, position, Stream.ACCEPT, self._base_length) < numerator

    def pick(self, weights: torch.Tensor | list[int], position: int, stream: Stream, nth: int = 0) -> int:
        """See `Draws`."""
        if isinstance(weights, list):
            drawn = below(sum(weights), self._seed, position, stream, self._base_length, nth)
            for index, weight in enumerate(weights):
                drawn -= weight
                if drawn < 0:
                    return index
            raise ValueError("no weight to pick from")
        cumulative = weights.cumsum(0)
        drawn = below(int(cumulative[-1]), self._seed, position, stream, self._base_length, nth)
        return int(torch.searchsorted(cumulative, drawn, right=True))


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """The law that a draft token was sampled from: probability `weights[token] / total`, 0 for tokens not listed."""

    weights: Mapping[int, int]
    """In decreasing order; each at least 1."""
    total: int
    lost_mass: float = 0.0
    """Probability that truncation took away before this law was sampled from; for reports."""

    @classmethod
    def one_hot(cls, token_id: int) -> DraftLaw:
        """The law of a deterministic draft."""
        return cls({token_id: 1}, 1)

    @classmethod
    def from_logits(cls, processed_logits: torch.Tensor, max_size: int) -> DraftLaw:
        """Truncate softmax(processed_logits) to its `max_size` most probable tokens, renormalise and round.

        Args:
            processed_logits: (vocab_size,), float32; -inf excludes a token.
            max_size: N.
        """
        probabilities = torch.softmax(processed_logits.double(), dim=-1)
        top = probabilities.topk(min(max_size, probabilities.numel()))
        kept = float(top.values.sum())
        weights = (top.values * (_DRAFT_SCALE / kept)).round_().long()
        pairs = {token: weight for token, weight in zip(top.indices.tolist(), weights.tolist(), strict=True) if weight}
        return cls(pairs, sum(pairs.values()), max(0.0, 1.0 - kept))

    @classmethod
    def from_proto(cls, message: model_pb2.DraftDistribution, token_id: int, vocab_size: int) -> DraftLaw:
        """The law that came with a draft token.

        Raises:
            InvalidArgumentError: malformed, or the token could not have been sampled from it.
        """
        if len(message.token_ids) != len(message.weights):
            raise InvalidArgumentError("a draft distribution must have one weight for each token id")
        if len(message.token_ids) > MAX_DRAFT_LAW_SIZE:
            raise InvalidArgumentError(
                f"a draft distribution has {len(message.token_ids)} tokens; at most {MAX_DRAFT_LAW_SIZE} are allowed"
            )
        if not 0.0 <= message.lost_mass <= 1.0:
            raise InvalidArgumentError("the lost_mass of a draft distribution must be between 0 and 1")
        weights = dict(zip(message.token_ids, message.weights, strict=True))
        if len(weights) != len(message.token_ids):
            raise InvalidArgumentError("a draft distribution names a token twice")
        if not all(weights.values()):
            raise InvalidArgumentError("a draft distribution has a weight of 0; leave such tokens out")
        if token_id not in weights:
            raise InvalidArgumentError("a draft token has probability 0 in the distribution it was sampled from")
        if max(weights) >= vocab_size:
            raise InvalidArgumentError(f"a draft distribution has an id outside the vocabulary of {vocab_size}")
        return cls(weights, sum(weights.values()), message.lost_mass)

    def to_proto(self) -> model_pb2.DraftDistribution:
        """The law as it travels with its token."""
        return model_pb2.DraftDistribution(
            token_ids=self.weights.keys(), weights=self.weights.values(), lost_mass=self.lost_mass
        )

    def sample(self, draws: Draws, position: int) -> int:
        """A draft token."""
        return list(self.weights)[draws.pick(list(self.weights.values()), position, Stream.DRAFT)]


class TargetLaw:
    """The target's law at one position.

    Args:
        weights: (vocab_size,), int64, with a sum of at least 1.
    """

    def __init__(self, weights: torch.Tensor) -> None:
        self._weights = weights
        self.total = int(weights.sum())

    @classmethod
    def from_logits(cls, processed_logits: torch.Tensor, *, is_greedy: bool) -> TargetLaw:
        """softmax(processed_logits), rounded to multiples of 2**-40; at temperature 0 all on the most probable token.

        Args:
            processed_logits: (vocab_size,), float32; -inf excludes a token.
            is_greedy: temperature 0.
        """
        if is_greedy:
            weights = torch.zeros_like(processed_logits, dtype=torch.long)
            weights[processed_logits.argmax()] = 1
            return cls(weights)
        return cls((torch.softmax(processed_logits.double(), dim=-1) * _TARGET_SCALE).round_().long())

    def weight(self, token_id: int) -> int:
        """Probability of a token times `total`."""
        return int(self._weights[token_id])

    def weights_of(self, token_ids: Collection[int]) -> list[int]:
        """`weight` of several tokens."""
        return self._weights[torch.tensor(list(token_ids), device=self._weights.device)].tolist()

    def sample(self, draws: Draws, position: int) -> int:
        """A token by this law."""
        return draws.pick(self._weights, position, Stream.RESIDUAL)

    def sample_outside(self, token_ids: Collection[int], draws: Draws, position: int) -> int:
        """A token by this law, given that it is none of `token_ids`."""
        weights = self._weights.clone()
        weights[torch.tensor(list(token_ids), device=weights.device)] = 0
        return draws.pick(weights, position, Stream.RESIDUAL, nth=1)

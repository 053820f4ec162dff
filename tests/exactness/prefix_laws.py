"""Small worlds for exact proofs: a target's and a drafter's law behind every prefix, in whole numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import torch

from specdec.errors import InvalidArgumentError
from specdec.sampling.laws import DraftLaw, TargetLaw

Prefix = tuple[int, ...]
JointLaw = dict[Prefix, Fraction]

DEAD_END: Prefix = (-1,)
"""Outcome of a request that fails because its rules leave no token at some position."""
KINDS = ("any", "ties", "disjoint", "equal", "one-hot target", "one-hot draft", "dead ends")
_SIZES = ((3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (5, 1))
"""Vocabulary and K: the larger the one, the smaller the other, so that every branch can be walked."""


class PrefixLaws:
    """Random laws behind every prefix, with zeros; a function of the case number.

    Args:
        case: number of the world; cases run through the kinds of laws and the sizes.
    """

    def __init__(self, case: int) -> None:
        self.vocab_size, self.num_draft_tokens = _SIZES[case % len(_SIZES)]
        self.kind = KINDS[case // len(_SIZES) % len(KINDS)]
        self._case = case
        self.target = cache(self._target)
        """The target's law behind a prefix; raises InvalidArgumentError at a dead end."""
        self.draft = cache(self._draft)
        """The drafter's law behind a prefix."""

    def __str__(self) -> str:
        return f"case {self._case} ({self.kind}, vocabulary {self.vocab_size}, K = {self.num_draft_tokens})"

    def target_probabilities(self, prefix: Prefix) -> list[Fraction]:
        """The same law as `target`."""
        weights = self.target_weights(prefix)
        return [Fraction(weight, sum(weights)) for weight in weights]

    def target_weights(self, prefix: Prefix) -> list[int]:
        """The same law as `target`."""
        source = self._source("target", prefix)
        if self.kind == "one-hot target":
            return _one_hot(source.randrange(self.vocab_size), self.vocab_size)
        if self.kind == "disjoint":
            return _on(self._half(prefix), source, self.vocab_size)
        return _row(source, self.vocab_size, largest=2 if self.kind == "ties" else 9)

    def target_joint(self, length: int) -> JointLaw:
        """The target's joint law of the first `length` tokens."""
        return self.completed({(): Fraction(1)}, length)

    def completed(self, law: JointLaw, length: int) -> JointLaw:
        """A law of sequences of any length as one of sequences of `length`: cut, or continued by the target."""
        whole: JointLaw = {}

        def go_on(tokens: Prefix, so_far: Fraction) -> None:
            if len(tokens) >= length or tokens == DEAD_END:
                whole[tokens[:length]] = whole.get(tokens[:length], Fraction(0)) + so_far
            elif self._is_dead_end(tokens):
                go_on(DEAD_END, so_far)
            else:
                for token, chance in enumerate(self.target_probabilities(tokens)):
                    if chance:
                        go_on((*tokens, token), so_far * chance)

        for tokens, probability in law.items():
            go_on(tokens, probability)
        return whole

    def _target(self, prefix: Prefix) -> TargetLaw:
        if self._is_dead_end(prefix):
            raise InvalidArgumentError("the sampling rules exclude every token")
        return TargetLaw(torch.tensor(self.target_weights(prefix)))

    def _draft(self, prefix: Prefix) -> DraftLaw:
        weights = self._draft_weights(prefix)
        pairs = sorted(((token, weight) for token, weight in enumerate(weights) if weight), key=lambda pair: -pair[1])
        return DraftLaw(dict(pairs), sum(weights))

    def _draft_weights(self, prefix: Prefix) -> list[int]:
        source = self._source("draft", prefix)
        if self.kind == "equal":
            # The same law under another scale.
            return [3 * weight for weight in self.target_weights(prefix)]
        if self.kind == "one-hot draft":
            return _one_hot(source.randrange(self.vocab_size), self.vocab_size)
        if self.kind == "disjoint":
            return _on(sorted(set(range(self.vocab_size)) - set(self._half(prefix))), source, self.vocab_size)
        return _row(source, self.vocab_size, largest=2 if self.kind == "ties" else 9)

    def _is_dead_end(self, prefix: Prefix) -> bool:
        # None behind the tokens that proofs look at: windows may reach there, plain decoding of these tokens does not.
        is_looked_at = 0 < len(prefix) <= self.num_draft_tokens
        return self.kind == "dead ends" and is_looked_at and self._source("dead end", prefix).random() < 0.25

    def _half(self, prefix: Prefix) -> list[int]:
        source = self._source("half", prefix)
        return sorted(source.sample(range(self.vocab_size), source.randint(1, self.vocab_size - 1)))

    def _source(self, purpose: str, prefix: Prefix) -> random.Random:
        return random.Random(f"{self._case} {purpose} {prefix}")


def _row(source: random.Random, vocab_size: int, largest: int) -> list[int]:
    while True:
        weights = [
            source.choice((0, source.randint(1, largest), source.randint(1, largest))) for _ in range(vocab_size)
        ]
        if any(weights):
            return weights


def _on(tokens: Sequence[int], source: random.Random, vocab_size: int) -> list[int]:
    return [source.randint(1, 9) if token in tokens else 0 for token in range(vocab_size)]


def _one_hot(token: int, vocab_size: int) -> list[int]:
    return [int(index == token) for index in range(vocab_size)]

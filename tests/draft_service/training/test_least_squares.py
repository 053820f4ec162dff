"""Where the target's next state is a linear function of what is known, it is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from draft_service.state_guess import StateGuess, unit_scale
from draft_service.training.least_squares import fit
from draft_service.training.samples import Sample
from tests.draft_service.training.random_samples import random_samples

SIZE, VOCAB_SIZE = 6, 40
SCALE = 30.0
"""Of the states; embeddings have another one."""
RIDGE_ERROR = 0.05
"""The penalty takes about a hundredth off every weight, and more where inputs go together."""


class Linear:
    """Texts whose states follow from the directions of two vectors, and from nothing else.

    One is the state before, the other the token's embedding, or what lower layers give.
    """

    def __init__(self, *, has_lower: bool = False) -> None:
        self._has_lower = has_lower
        generator = torch.Generator().manual_seed(1)
        self.embeddings = torch.nn.Embedding(VOCAB_SIZE, SIZE)
        self.embeddings.weight.data = torch.randn((VOCAB_SIZE, SIZE), generator=generator) * 3
        self.of_token = torch.randn((SIZE, SIZE), generator=generator) * 0.5
        self.of_before = torch.randn((SIZE, SIZE), generator=generator) * 0.3
        self.constant = torch.randn(SIZE, generator=generator) * 0.5
        self.samples = [self._with_features(sample) for sample in random_samples(500, vocab_size=VOCAB_SIZE)]

    def _with_features(self, sample: Sample) -> Sample:
        generator = torch.Generator().manual_seed(sample.index)
        embedded = self.embeddings.weight.data[sample.token_ids[:-1].long()]
        lower = torch.randn(embedded.shape, generator=generator).bfloat16().float() if self._has_lower else embedded
        states = [torch.randn(SIZE, generator=generator)]
        for row in lower[1:]:
            known = unit_scale(row) @ self.of_token.T + unit_scale(states[-1]) @ self.of_before.T
            states.append(SCALE * (known + self.constant))
        parts = [lower, torch.stack(states)] if self._has_lower else [torch.stack(states)]
        return replace(sample, features=torch.stack(parts, 1).bfloat16())


def fitted(linear: Linear, samples: list[Sample] | None = None) -> StateGuess:
    guess = StateGuess(SIZE, 4)
    fit(guess, linear.embeddings, linear.samples if samples is None else samples)
    return guess


@pytest.mark.parametrize("has_lower", [False, True], ids=["of the embedding", "of the lower state"])
def test_a_linear_function_is_found(has_lower: bool) -> None:
    linear = Linear(has_lower=has_lower)
    guess = fitted(linear)
    features = [sample.features[:, -1].float() for sample in linear.samples if sample.features is not None]
    changes = torch.cat([states[1:] - states[:-1] for states in features]).square().mean(0).sqrt()
    torch.testing.assert_close(guess.scale, changes, rtol=1e-4, atol=0)
    expected = SCALE * torch.cat([linear.of_token, linear.of_before], 1)
    found = guess.known.weight[:SIZE].data * guess.scale[:, None]
    torch.testing.assert_close(found, expected, atol=SCALE * RIDGE_ERROR, rtol=0.05)
    constant = guess.known.bias[:SIZE].data * guess.scale
    torch.testing.assert_close(constant, SCALE * linear.constant, atol=SCALE * RIDGE_ERROR, rtol=0.05)
    assert not guess.known.bias[SIZE:].any()


def test_it_then_guesses_the_next_state() -> None:
    linear = Linear()
    guess = fitted(linear, linear.samples[:400])
    for sample in linear.samples[400:]:
        assert sample.features is not None
        states = sample.features[:, -1].float()
        with torch.no_grad():
            guessed = guess(linear.embeddings(sample.token_ids[1:-1].long()), states[:-1])
        assert float((guessed - states[1:]).norm() / states[1:].norm()) < 0.06


def test_texts_too_short_to_learn_from_are_left_out() -> None:
    linear = Linear()
    some = [sample for sample in linear.samples[:3] if sample.features is not None]
    short = [replace(sample, features=None) for sample in some]
    short += [replace(sample, features=sample.features[:1]) for sample in some if sample.features is not None]
    found, expected = fitted(linear, [*short, *linear.samples]), fitted(linear)
    assert torch.equal(found.known.weight[:SIZE], expected.known.weight[:SIZE])
    assert torch.equal(found.scale, expected.scale)


def test_a_state_that_is_always_the_same_is_no_reason_to_fail() -> None:
    linear = Linear()
    same = [
        replace(sample, features=torch.ones_like(sample.features))
        for sample in linear.samples[:20]
        if sample.features is not None
    ]
    guess = fitted(linear, same)
    assert all(bool(parameter.isfinite().all()) for parameter in guess.parameters())
    with torch.no_grad():
        guessed = guess(linear.embeddings.weight[3], torch.ones(SIZE))
    torch.testing.assert_close(guessed, torch.ones(SIZE), atol=0.1, rtol=0.0)

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
    """Texts whose states follow from the token and the direction of the state before, and from nothing else."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.embeddings = torch.nn.Embedding(VOCAB_SIZE, SIZE)
        self.embeddings.weight.data = torch.randn((VOCAB_SIZE, SIZE), generator=generator) * 3
        self.of_token = torch.randn((SIZE, SIZE), generator=generator) * 0.5
        self.of_before = torch.randn((SIZE, SIZE), generator=generator) * 0.3
        self.constant = torch.randn(SIZE, generator=generator) * 0.5
        self.samples = [self._with_features(sample) for sample in random_samples(500, vocab_size=VOCAB_SIZE)]

    def _with_features(self, sample: Sample) -> Sample:
        generator = torch.Generator().manual_seed(sample.index)
        state = torch.randn(SIZE, generator=generator)
        states = [state]
        for token in sample.token_ids[1:-1].long():
            known = unit_scale(self.embeddings.weight.data[token])
            state = SCALE * (known @ self.of_token.T + unit_scale(state) @ self.of_before.T + self.constant)
            states.append(state)
        # Only the last of several states is guessed.
        others = torch.randn((len(states), SIZE), generator=generator)
        return replace(sample, features=torch.stack([others, torch.stack(states)], 1).bfloat16())


def fitted(linear: Linear, samples: list[Sample] | None = None) -> StateGuess:
    guess = StateGuess(SIZE, 4)
    fit(guess, linear.embeddings, linear.samples if samples is None else samples)
    return guess


def test_a_linear_function_is_found() -> None:
    linear = Linear()
    guess = fitted(linear)
    states = [sample.features[1:, 1].float() for sample in linear.samples if sample.features is not None]
    size = float(torch.cat(states).square().mean(-1).sqrt().mean())
    assert float(guess.scale) == pytest.approx(size, rel=1e-4)
    share = SCALE / size
    for found, expected in (
        (guess.token.weight, linear.of_token),
        (guess.before.weight, linear.of_before),
        (guess.token.bias, linear.constant),
    ):
        torch.testing.assert_close(found.data, expected * share, atol=RIDGE_ERROR, rtol=0.05)


def test_it_then_guesses_the_next_state() -> None:
    linear = Linear()
    guess = fitted(linear, linear.samples[:400])
    for sample in linear.samples[400:]:
        assert sample.features is not None
        states = sample.features[:, 1].float()
        with torch.no_grad():
            guessed = guess(linear.embeddings(sample.token_ids[1:-1].long()), states[:-1])
        assert float((guessed - states[1:]).norm() / states[1:].norm()) < 0.06


def test_texts_too_short_to_learn_from_are_left_out() -> None:
    linear = Linear()
    some = [sample for sample in linear.samples[:3] if sample.features is not None]
    short = [replace(sample, features=None) for sample in some]
    short += [replace(sample, features=sample.features[:1]) for sample in some if sample.features is not None]
    found, expected = fitted(linear, [*short, *linear.samples]), fitted(linear)
    assert torch.equal(found.token.weight, expected.token.weight)
    assert float(found.scale) == float(expected.scale)


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

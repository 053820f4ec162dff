"""Where the next state is a linear function of what is known, it is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from draft_service.feature_input import FeatureInput
from draft_service.training.least_squares import fit
from draft_service.training.samples import Sample
from specdec.runner.hidden_states import unit_scale
from tests.draft_service.training.random_samples import random_samples

SIZE, NUM_STATES, VOCAB_SIZE = 6, 2, 40
RIDGE_ERROR = 0.08
"""The penalty takes about a hundredth off every weight, and more where inputs go together."""


class Linear:
    """Texts whose last state follows from token, states before and a constant, and from nothing else."""

    def __init__(self, *, of_last: bool = True, of_first: bool = True) -> None:
        generator = torch.Generator().manual_seed(1)
        self.embeddings = torch.nn.Embedding(VOCAB_SIZE, SIZE)
        self.embeddings.weight.data = torch.randn((VOCAB_SIZE, SIZE), generator=generator) * 3
        self.of_token = torch.randn((SIZE, SIZE), generator=generator)
        self.of_states = torch.randn((SIZE, NUM_STATES, SIZE), generator=generator) * 0.3
        self.of_states[:, 0] *= of_first
        self.of_states[:, 1] *= of_last
        self.constant = torch.randn(SIZE, generator=generator)
        self.samples = [self._with_features(sample, generator) for sample in random_samples(400, vocab_size=VOCAB_SIZE)]

    def next_state(self, tokens: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        known = unit_scale(self.embeddings.weight.data[tokens])
        return known @ self.of_token.T + features.flatten(-2) @ self.of_states.flatten(1).T + self.constant

    def _with_features(self, sample: Sample, generator: torch.Generator) -> Sample:
        features = torch.randn((len(sample.token_ids) - 1, NUM_STATES, SIZE), generator=generator)
        for position in range(1, len(features)):
            features[position, 1] = self.next_state(sample.token_ids[position].long(), features[position - 1])
        return replace(sample, features=features.half())


def fitted(linear: Linear, samples: list[Sample] | None = None) -> FeatureInput:
    inputs = FeatureInput(SIZE, NUM_STATES)
    fit(inputs, linear.embeddings, linear.samples if samples is None else samples)
    return inputs


def test_a_linear_function_is_found() -> None:
    linear = Linear()
    inputs = fitted(linear)
    torch.testing.assert_close(inputs.token.weight.data, linear.of_token, atol=RIDGE_ERROR, rtol=0.03)
    torch.testing.assert_close(inputs.target.weight.data, linear.of_states.flatten(1), atol=RIDGE_ERROR, rtol=0.03)
    torch.testing.assert_close(inputs.token.bias.data, linear.constant, atol=RIDGE_ERROR, rtol=0.03)


def test_its_own_state_stands_for_the_last_of_the_targets() -> None:
    linear = Linear(of_first=False)
    inputs = fitted(linear)
    torch.testing.assert_close(inputs.own.weight.data, linear.of_states[:, 1], atol=RIDGE_ERROR, rtol=0.03)


def test_what_only_the_other_states_tell_is_not_asked_of_its_own() -> None:
    linear = Linear(of_last=False)
    inputs = fitted(linear)
    assert float(inputs.own.weight.data.abs().max()) < 0.1
    assert float(inputs.target.weight.data[:, :SIZE].abs().max()) > 0.3


def test_the_input_then_guesses_the_next_state() -> None:
    linear = Linear()
    inputs = fitted(linear, linear.samples[:300])
    for sample in linear.samples[300:]:
        assert sample.features is not None
        features, tokens = sample.features.float(), sample.token_ids.long()
        with torch.no_grad():
            guessed = inputs.of_tokens(linear.embeddings(tokens[1:-1])) + inputs.of_features(features[:-1])
        error = (guessed - features[1:, 1]).norm() / features[1:, 1].norm()
        assert float(error) < 0.05


@pytest.mark.parametrize("num_states", [1, 2])
def test_texts_too_short_to_learn_from_are_left_out(num_states: int) -> None:
    """And values that are always 0 are no reason to fail."""
    linear = Linear()
    short = [replace(sample, features=None) for sample in linear.samples[:3]]
    short += [
        replace(sample, features=sample.features[:1]) for sample in linear.samples[:3] if sample.features is not None
    ]
    if num_states == 1:
        blank = [
            replace(sample, features=sample.features * torch.tensor([0.0, 1.0])[:, None])
            for sample in linear.samples
            if sample.features is not None
        ]
        inputs = fitted(linear, [*short, *blank])
        assert not inputs.target.weight.data[:, :SIZE].any()
    else:
        inputs, expected = fitted(linear, [*short, *linear.samples]), fitted(linear)
        assert torch.equal(inputs.token.weight, expected.token.weight)
    assert all(bool(parameter.isfinite().all()) for parameter in inputs.parameters())

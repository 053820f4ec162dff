from __future__ import annotations

import torch

from draft_service.training.vocabulary import choose_draft_vocab, token_mass
from tests.draft_service.training.random_samples import random_samples
from tests.tiny_models import TINY_VOCAB_SIZE


def test_mass_is_the_probability_of_all_positions() -> None:
    samples = random_samples(10, top=TINY_VOCAB_SIZE)
    mass = token_mass(samples, TINY_VOCAB_SIZE)
    assert abs(float(mass.sum()) - sum(len(sample.law_positions) for sample in samples)) < 0.1
    one = samples[0]
    expected = one.top_logprobs.double().exp()[one.top_ids == 17].sum()
    assert torch.allclose(token_mass([one], TINY_VOCAB_SIZE)[17], expected)


def test_the_most_probable_tokens_are_chosen() -> None:
    mass = torch.tensor([0.1, 5.0, 0.0, 3.0, 3.0, 0.2], dtype=torch.float64)
    assert choose_draft_vocab(mass, 2, ()).tolist() == [1, 3]
    assert choose_draft_vocab(mass, 3, (2,)).tolist() == [1, 2, 3]
    assert choose_draft_vocab(mass, 99, (2,)).tolist() == [0, 1, 2, 3, 4, 5]

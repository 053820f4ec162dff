"""Two replicas with the same weights say the same of them, and others do not."""

from __future__ import annotations

import copy

import torch

from specdec.models.fingerprint import weights_fingerprint


def model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Embedding(200, 16), torch.nn.Linear(16, 8), torch.nn.LayerNorm(8))


def test_the_same_weights_have_one_fingerprint() -> None:
    assert weights_fingerprint(model(), "float32") == weights_fingerprint(copy.deepcopy(model()), "float32")
    assert len(weights_fingerprint(model(), "float32")) == 64


def test_other_weights_types_and_shapes_have_others() -> None:
    trained = model()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(1e-4)
    different = [
        weights_fingerprint(model(), "float32"),
        weights_fingerprint(model(1), "float32"),
        weights_fingerprint(trained, "float32"),
        weights_fingerprint(model().to(torch.bfloat16), "bfloat16"),
        weights_fingerprint(model(), "int4/bfloat16"),
        weights_fingerprint(torch.nn.Sequential(torch.nn.Linear(8, 16)), "float32"),
    ]
    assert len(set(different)) == len(different)

"""Models that cost so little that a fault costs little, too."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.specdec.models.saved_models import save_tiny_model
from tests.tiny_models import tiny_llama

_DRAFT_NOISE = 0.1
"""Of the target's weights, relative to their spread: about every second draft token is right."""


def save_models(directory: Path) -> tuple[Path, Path]:
    """A target, and a draft whose weights are the target's with noise on them; gives both directories."""
    target, draft = directory / "target", directory / "draft"
    save_tiny_model(target)
    model = tiny_llama()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * parameter.std(correction=0) * _DRAFT_NOISE)
    save_tiny_model(draft, model)
    return target, draft

"""Telling whether two replicas have the same weights."""

from __future__ import annotations

import hashlib

import torch

_SAMPLES = 64
"""Values of each tensor: training, even a little of it, changes nearly all of them."""


def weights_fingerprint(model: torch.nn.Module, dtype: str) -> str:
    """SHA-256, in hex, of a sample of each weight of a model, with names, shapes and what they are computed in.

    The same on every device. Take it before kernels pack the weights, each in its own way.

    Args:
        model: with its weights loaded.
        dtype: element type that is served, as advertised.
    """
    digest = hashlib.sha256(f"{type(model).__name__} {dtype}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        places = torch.linspace(0, max(flat.numel() - 1, 0), min(_SAMPLES, flat.numel()), dtype=torch.float64)
        sample = flat[places.to(flat.device, torch.int64)].to("cpu", copy=True).contiguous()
        digest.update(f"\n{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

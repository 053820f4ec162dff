"""A probe of a loaded model: does a ragged batch give the values of the model's own attention?

The config of an architecture says little about what its code does with attention. Two forward passes over a few tokens
tell for certain, and for every architecture to come, so a model is never served with silently wrong logits.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from specdec.models.errors import ModelError
from specdec.runner.attention import ATTENTION_NAME
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work

_LONG, _SHORT, _KEPT = 12, 9, 5
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_HALF_PRECISION_TOLERANCE = 0.15


@torch.inference_mode()
def probe_ragged_batch(model: PreTrainedModel, vocab_size: int) -> None:
    """Run two sequences of different lengths in one batch, one of them after a rollback, and compare.

    Args:
        model: loaded with the ragged attention; has it again afterwards.
        vocab_size: true size of the vocabulary.

    Raises:
        ModelError: the values differ, are not finite, or the model cannot be run in this way.
    """
    name = model.config.model_type
    generator = torch.Generator().manual_seed(0)
    long, short, rejected = (
        torch.randint(vocab_size, (length,), generator=generator).tolist() for length in (_LONG, _SHORT, _SHORT)
    )
    try:
        expected = torch.cat([_own_logits(model, long, vocab_size), _own_logits(model, short, vocab_size)[_KEPT:]])
        runner = ModelRunner(model, vocab_size)
        cache = SequenceCache()
        runner.forward([Work(cache, short[:_KEPT] + rejected[_KEPT:], num_logits=0)])
        cache.truncate(_KEPT)
        found = torch.cat(
            runner.forward(
                [Work(SequenceCache(), long, num_logits=_LONG), Work(cache, short[_KEPT:], num_logits=_SHORT - _KEPT)]
            )
        )
    except Exception as error:
        raise ModelError(
            f"{name} cannot be run over a ragged batch ({type(error).__name__}: {error}); choose another model"
        ) from error
    if not (expected.isfinite().all() and found.isfinite().all()):
        raise ModelError(f"{name} gives values that are not finite as {model.dtype}; choose another dtype or model")
    difference = _relative_difference(expected, found)
    # In half precision a token that another expert gets may differ a lot; most do not.
    exact = model.dtype in _TOLERANCE
    distance = float(difference.max() if exact else difference.median())
    if distance > _TOLERANCE.get(model.dtype, _HALF_PRECISION_TOLERANCE):
        raise ModelError(
            f"{name} computes other values over a ragged batch than alone (relative difference {distance:.2g}), "
            "so its attention is of a kind that is not served; choose another model"
        )


def _own_logits(model: PreTrainedModel, token_ids: list[int], vocab_size: int) -> torch.Tensor:
    """Logits of one sequence with transformers' plain attention; (tokens, vocab_size), float32."""
    model.set_attn_implementation("eager")
    try:
        output = model(input_ids=torch.tensor([token_ids], device=model.device), use_cache=False)
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    logits: torch.Tensor = output.logits
    return logits[0, :, :vocab_size].float()


def _relative_difference(expected: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Of each row, relative to its spread: what is the same for all tokens is no difference in probability; (rows,)."""
    expected = expected - expected.mean(dim=-1, keepdim=True)
    found = found - found.mean(dim=-1, keepdim=True)
    spread: torch.Tensor = expected.norm(dim=-1)
    return torch.div((found - expected).norm(dim=-1), spread)

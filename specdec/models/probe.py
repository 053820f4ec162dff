"""A probe of a loaded model: does a ragged batch give the values of the model's own attention?

The config of an architecture says little about what its code does with attention. Two forward passes over a few tokens
tell for certain, and for every architecture to come, so a model is never served with silently wrong logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from specdec.kernels.int4 import is_int4
from specdec.models.errors import ModelError, first_line
from specdec.runner.attention import ATTENTION_NAME
from specdec.runner.cache import SequenceCache
from specdec.runner.pool import KVPool
from specdec.runner.runner import ModelRunner, Work

_LONG, _SHORT, _KEPT = 12, 9, 5
_WINDOW = 4
# Relative differences seen on trained models: 3e-6 in float32, 0.03 in bfloat16; with the wrong attention, about 1.
_FLOAT32_TOLERANCE = 1e-3
_HALF_PRECISION_TOLERANCE = 0.3


@torch.inference_mode()
def probe_ragged_batch(model: PreTrainedModel, vocab_size: int, context_length: int) -> None:
    """Run two sequences of different lengths in one batch, one of them after a rollback, and compare.

    Args:
        model: loaded with the ragged attention; has it again afterwards.
        vocab_size: true size of the vocabulary.
        context_length: longest sequence that will be run, in tokens.

    Raises:
        ModelError: the values differ, are not finite, or the model cannot be run in this way.
    """
    name = model.config.model_type
    generator = torch.Generator().manual_seed(0)
    long, short, rejected = (
        torch.randint(vocab_size, (length,), generator=generator).tolist() for length in (_LONG, _SHORT, _SHORT)
    )
    runner = ModelRunner(model, vocab_size)
    # In one pool, as when they are served: where they are says how attention is computed.
    pool = KVPool(None)
    cache = SequenceCache(pool)
    batch = [Work(SequenceCache(pool), long, num_logits=_LONG), Work(cache, short[_KEPT:], num_logits=_SHORT - _KEPT)]
    try:
        with _short_windows(model, context_length):
            expected = torch.cat([_own_logits(model, long, vocab_size), _own_logits(model, short, vocab_size)[_KEPT:]])
            runner.forward([Work(cache, short[:_KEPT] + rejected[_KEPT:], num_logits=0)])
            cache.truncate(_KEPT)
            found = torch.cat(runner.forward(batch))
    except Exception as error:
        raise ModelError(
            f"{name} cannot be run over a ragged batch ({first_line(error)}); choose another model"
        ) from error
    if not (expected.isfinite().all() and found.isfinite().all()):
        raise ModelError(f"{name} gives values that are not finite as {model.dtype}; choose another dtype or model")
    difference = _relative_difference(expected, found)
    # In half precision a token that another expert gets may differ a lot; most of a sequence do not.
    exact = model.dtype == torch.float32 and not is_int4(model)
    of_sequences = (difference[:_LONG], difference[_LONG:])
    distance = max(float(rows.max() if exact else rows.median()) for rows in of_sequences)
    if distance > (_FLOAT32_TOLERANCE if exact else _HALF_PRECISION_TOLERANCE):
        raise ModelError(
            f"{name} computes other values over a ragged batch than alone (relative difference {distance:.2g}), "
            "so its attention is of a kind that is not served; choose another model"
        )


@contextmanager
def _short_windows(model: PreTrainedModel, context_length: int) -> Iterator[None]:
    """Cut sliding windows to a few tokens, so that the probe sees whether they reach the attention.

    Some models tell their window to the mask alone. It does not matter where no sequence gets as long as the window.
    """
    holders: dict[int, Any] = {id(module): module for module in model.modules()}
    holders |= {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    windows = [(each, getattr(each, "sliding_window", None)) for each in holders.values()]
    cut = [(each, window) for each, window in windows if isinstance(window, int) and _WINDOW < window < context_length]
    for holder, _ in cut:
        holder.sliding_window = _WINDOW
    try:
        yield
    finally:
        for holder, window in cut:
            holder.sliding_window = window


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

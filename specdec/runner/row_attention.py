"""Attention computed row by row, so that a row gives the same bits in any batch.

The kernels of `attention.py` take the rows of a sequence together, and sum in an order that depends on how many there
are. Here each row is a call of its own over the tokens that it sees: the same call whether the row is a decode step,
the end of a window, a node of a tree or part of a prefill. It costs a call for each row, and reads the keys as often.
"""

from __future__ import annotations

import torch
from transformers import AttentionInterface

from specdec.runner.attention import RaggedBatch
from specdec.runner.weighted_values import weighted_values

ROW_ATTENTION_NAME = "specdec_row_by_row"
"""For `set_attn_implementation`."""


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    ragged_batch: RaggedBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """As `ragged_attention`: same arguments, same result but for rounding."""
    kv_heads = key.shape[1]
    layer: int = module.layer_idx  # type: ignore[assignment]
    ragged_batch.write(layer, key[0], value[0])
    outputs: list[torch.Tensor] = []
    for segment in ragged_batch.segments:
        keys, values = segment.read(layer)
        mask = segment.mask(sliding_window, query.device) if segment.parents is not None else None
        for row in range(segment.num_rows):
            end = segment.cache.length + row + 1
            if mask is None:
                start = 0 if sliding_window is None else max(0, end - sliding_window)
                seen_keys, seen_values = keys[:, start:end], values[:, start:end]
            else:
                seen_keys, seen_values = keys[:, mask[row]], values[:, mask[row]]
            # The query heads that share a key head are further rows of that head.
            rows = query[0, :, len(outputs)].reshape(kv_heads, 1, -1, query.shape[-1])
            out = weighted_values(rows, seen_keys[:, None], seen_values[:, None], None, scaling, softcap, s_aux)
            outputs.append(out.reshape(-1, out.shape[-1]))
    return torch.stack(outputs)[None], None


AttentionInterface.register(ROW_ATTENTION_NAME, row_attention)

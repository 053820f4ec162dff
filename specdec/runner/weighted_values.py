"""The arithmetic of attention: scores of rows and keys, and values weighted by them."""

from __future__ import annotations

import torch
from torch.nn import functional


def weighted_values(
    rows: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of some sequences at once, each row over the tokens of its own.

    Args:
        rows: (kv_heads, sequences, groups * rows, head_dim): the query heads that share a key head are further rows of
            that head, so that nothing is repeated in memory; those of one query head lie side by side.
        keys: (kv_heads, sequences, tokens, head_dim)
        values: (kv_heads, sequences, tokens, value_dim)
        mask: what rows see, (groups * rows, tokens) or (1, sequences, groups * rows, tokens): bool, or what is added to
            scores, 0 and -inf. None: everything. No row sees nothing.
        scaling: factor on the scores; None is 1 / sqrt(head_dim).
        softcap: see `ragged_attention`.
        s_aux: as `softcap`.

    Returns:
        (kv_heads, sequences, groups * rows, value_dim)
    """
    if softcap is None and s_aux is None:
        return functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scaling)
    # Score functions that the fused kernels do not have.
    scores = rows @ keys.transpose(-2, -1) * (rows.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if s_aux is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype) @ values
    kv_heads, sequences, grouped_rows, _ = scores.shape
    groups = s_aux.numel() // kv_heads
    sinks = s_aux.to(scores.dtype).reshape(kv_heads, 1, groups, 1).expand(-1, sequences, -1, grouped_rows // groups)
    together = torch.cat([scores, sinks.reshape(kv_heads, sequences, grouped_rows, 1)], dim=-1)
    weights = torch.softmax(together, dim=-1, dtype=torch.float32)
    return weights[..., :-1].to(values.dtype) @ values

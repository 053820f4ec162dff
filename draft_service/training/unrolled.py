"""Several draft steps from every position of a text at once, each as it is when a window is drafted.

The first step reads the target's features everywhere. Step s + 1 at a position continues a window that began s
positions before: up to there it sees what was computed from the target's features, and behind it what the steps before
computed from the draft's own states. Training on all of them teaches the draft to go on from itself ("training-time
test", EAGLE-3, Li et al. 2025, arXiv:2503.01840).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from draft_service.feature_input import FeatureInput
from specdec.runner.hidden_states import layer_list

ATTENTION_NAME = "specdec_unrolled"
"""Name of the attention that a student needs for it."""


class Unrolled:
    """Keys and values of the steps so far."""

    def __init__(self) -> None:
        self._keys: dict[int, list[torch.Tensor]] = {}
        self._values: dict[int, list[torch.Tensor]] = {}
        self._mask: torch.Tensor | None = None
        self.step = 0
        """Of the pass that is being computed, from 0."""

    def add(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of one more step of a layer; returns those of all its steps, (texts, kv_heads, steps * length, dim)."""
        keys, values = self._keys.setdefault(layer, []), self._values.setdefault(layer, [])
        keys.append(key)
        values.append(value)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def mask(self, length: int, sliding_window: int | None, device: torch.device) -> torch.Tensor:
        """Which keys of all steps each position sees in the present one; (length, steps * length), bool."""
        rows = torch.arange(length, device=device)[:, None]
        columns = torch.arange(length, device=device)[None]
        parts = [columns <= rows - self.step, *(columns == rows - behind for behind in reversed(range(self.step)))]
        mask = torch.cat(parts, 1)
        if sliding_window is not None:
            mask &= (columns > rows - sliding_window).repeat(1, len(parts))
        return mask


def unrolled_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    unrolled: Unrolled,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention of one step; see `ragged_attention` for the arguments.

    Returns:
        (texts, length, heads, head_dim) and no weights.
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys, values = unrolled.add(layer, key, value)
    groups = query.shape[1] // key.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    if unrolled.step == 0 and sliding_window is None and softcap is None and s_aux is None:
        output = functional.scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scaling)
    else:
        mask = unrolled.mask(query.shape[2], sliding_window, query.device)
        if softcap is None and s_aux is None:
            output = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)
        else:
            scores = query @ keys.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            if s_aux is not None:
                sinks = s_aux.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
                scores = torch.cat([scores, sinks], -1)
            weights = torch.softmax(scores, -1, dtype=torch.float32)[..., : keys.shape[2]]
            output = weights.to(values.dtype) @ values
    return output.transpose(1, 2).contiguous(), None


def unrolled_logits(
    draft: PreTrainedModel,
    inputs: FeatureInput,
    token_ids: torch.Tensor,
    features: torch.Tensor,
    rows: torch.Tensor,
    num_steps: int,
) -> Iterator[torch.Tensor]:
    """Logits of each step in turn, as the draft's head gives them; (len(rows), scored tokens).

    Args:
        draft: with the attention of this module.
        inputs: its own.
        token_ids: (texts, length), int64.
        features: (texts, length, states, hidden_size), of each position; zeros where there are none.
        rows: (rows,), int64: of the flattened texts, those whose logits are wanted.
        num_steps: how many draft tokens are looked ahead.
    """
    own: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _arguments: object, output: Any) -> None:
        own[:] = [output if isinstance(output, torch.Tensor) else output[0]]

    def pick(_module: torch.nn.Module, _arguments: object, output: Any) -> Any:
        # Before the head, which is most of the work.
        output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[rows][None]
        return output

    unrolled = Unrolled()
    of_tokens = inputs.of_tokens(draft.get_input_embeddings()(token_ids))
    carried = inputs.of_features(features)
    last_layer = draft.get_submodule(f"{layer_list(draft)}.{draft.config.num_hidden_layers - 1}")
    hooks = [last_layer.register_forward_hook(keep), draft.base_model.register_forward_hook(pick)]
    try:
        for step in range(num_steps):
            unrolled.step = step
            # What is carried into a position comes from the one before it.
            embeddings = of_tokens + functional.pad(carried, (0, 0, 1, 0))[:, :-1]
            output = draft(inputs_embeds=embeddings, use_cache=False, unrolled=unrolled)
            yield output.logits[0]
            carried = inputs.of_own(own[0])
    finally:
        for hook in hooks:
            hook.remove()


AttentionInterface.register(ATTENTION_NAME, unrolled_attention)

"""Several draft steps from every position of a text at once, each as it is when a window is drafted.

Step 0 reads the target's states everywhere and only leaves keys and values. Step s at a position makes the draft token
s of a window: it sees what step 0 left up to s positions before, and behind that what steps 1 to s left, which read
guesses. Training on all of them teaches the draft to go on from itself ("training-time test", EAGLE-3, Li et al. 2025,
arXiv:2503.01840).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from draft_service.state_guess import StateGuess, replace_states

ATTENTION_NAME = "specdec_unrolled"
"""Name of the attention that a student needs for it."""


class Unrolled:
    """Keys and values of the steps so far.

    Args:
        length: of the texts.
        first: position that the steps behind step 0 begin at.
    """

    def __init__(self, length: int, first: int) -> None:
        self.length, self.first = length, first
        self._keys: dict[int, list[torch.Tensor]] = {}
        self._values: dict[int, list[torch.Tensor]] = {}
        self._mask: torch.Tensor | None = None
        self.step = 0
        """Of the pass that is being computed, from 0."""

    def add(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of one more step of a layer; returns those of all its steps, (texts, kv_heads, all keys, head_dim)."""
        keys, values = self._keys.setdefault(layer, []), self._values.setdefault(layer, [])
        keys.append(key)
        values.append(value)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def mask(self, num_rows: int, sliding_window: int | None, device: torch.device) -> torch.Tensor:
        """Which keys of all steps each row sees in the present one; (num_rows, all keys), bool."""
        rows = torch.arange(self.first, self.first + num_rows, device=device)[:, None]
        columns = torch.arange(self.length, device=device)[None]
        later = columns[:, self.first :]
        # Of step 0 whatever lies before the window; of each later step the one position that it made in this window.
        parts = [(columns, columns <= rows - self.step)]
        parts += [(later, later == rows - behind) for behind in reversed(range(self.step))]
        if sliding_window is not None:
            parts = [(places, seen & (places > rows - sliding_window)) for places, seen in parts]
        return torch.cat([seen for _, seen in parts], 1)


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
    guess: StateGuess,
    token_ids: torch.Tensor,
    features: torch.Tensor,
    rows: torch.Tensor,
    num_steps: int,
) -> Iterator[torch.Tensor]:
    """Logits of the steps 1, 2, ... in turn, as the draft's head gives them; (len(rows), scored tokens).

    Args:
        draft: a student with the attention of this module: upper layers alone.
        guess: its own.
        token_ids: (texts, length), int64.
        features: (texts, length, states, hidden_size), of each position; of two states the first is what lower layers
            give, and the last is what upper ones read: zeros where it is not known.
        rows: (rows,), int64: of the flattened texts, those whose logits are wanted.
        num_steps: how many draft tokens are looked ahead.
    """

    def pick(_module: torch.nn.Module, _arguments: object, output: Any) -> Any:
        # Before the head, which is most of the work.
        output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[picked][None]
        return output

    num_texts, length = token_ids.shape
    # The steps begin where the first wanted row can be reached by the last of them.
    first = max(0, int((rows % length).min()) - num_steps + 1)
    picked = rows // length * (length - first) + rows % length - first
    unrolled = Unrolled(length, first)
    lower = features[:, :, 0] if features.shape[2] > 1 else draft.get_input_embeddings()(token_ids)
    known = features[:, :, -1]
    before = functional.pad(known, (0, 0, 1, 0))[:, :-1]
    # Where the target's state is not known, as after a prefix hit, a guess stands for it here as in the service.
    is_known = known.any(-1, keepdim=True)
    with torch.no_grad():
        read = known if bool(is_known[:, :-1].all()) else torch.where(is_known, known, guess(lower, before).float())
        _read(draft, read, draft.base_model, inputs_embeds=read, use_cache=False, unrolled=unrolled)
    lower, before = lower[:, first:], before[:, first:]
    position_ids = torch.arange(first, length, device=token_ids.device).expand(num_texts, -1)
    hook = draft.base_model.register_forward_hook(pick)
    try:
        for step in range(1, num_steps + 1):
            unrolled.step = step
            states = guess(lower, before)
            output = _read(
                draft,
                states,
                draft,
                inputs_embeds=states,
                position_ids=position_ids,
                use_cache=False,
                unrolled=unrolled,
            )
            yield output.logits[0]
            before = functional.pad(states, (0, 0, 1, 0))[:, :-1]
    finally:
        hook.remove()


def _read(student: PreTrainedModel, states: torch.Tensor, part: torch.nn.Module, **arguments: object) -> Any:
    """Run a part of a student whose layers read some states, whatever it does with its inputs before."""
    handle = replace_states(student, 0, lambda _: states)
    try:
        return part(**arguments)
    finally:
        handle.remove()


AttentionInterface.register(ATTENTION_NAME, unrolled_attention)

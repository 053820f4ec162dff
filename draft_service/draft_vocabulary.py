"""The draft vocabulary: the token ids that a trained draft scores. All others have probability 0 in its law."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel


def restrict_head(model: PreTrainedModel, token_ids: torch.Tensor) -> None:
    """Replace the LM head by one that scores only the draft vocabulary; its logits are then (..., draft_vocab_size).

    Args:
        model: its head keeps its values for these ids, and is no longer tied to the embeddings.
        token_ids: (draft_vocab_size,), int64, increasing.
    """
    holder: Any = model
    head = holder.get_output_embeddings()
    restricted = torch.nn.Linear(
        head.weight.shape[1],
        len(token_ids),
        bias=getattr(head, "bias", None) is not None,
        device=head.weight.device,
        dtype=head.weight.dtype,
    )
    with torch.no_grad():
        restricted.weight.copy_(head.weight[token_ids])
        if restricted.bias is not None:
            restricted.bias.copy_(head.bias[token_ids])
    holder.set_output_embeddings(restricted)
    model.config.tie_word_embeddings = False


def spread_logits(model: PreTrainedModel, token_ids: torch.Tensor, vocab_size: int) -> None:
    """Have a model with a restricted head give logits over the whole vocabulary, -inf outside the draft vocabulary.

    Done behind the model's own forward pass, because some models cap or scale their logits after the head.

    Args:
        model: from `restrict_head`.
        token_ids: (draft_vocab_size,), int64, on the model's device.
        vocab_size: of the target.
    """

    def spread(_module: torch.nn.Module, _arguments: object, output: Any) -> Any:
        narrow = output.logits
        wide = narrow.new_full((*narrow.shape[:-1], vocab_size), -torch.inf)
        output.logits = wide.index_copy_(-1, token_ids, narrow)
        return output

    model.register_forward_hook(spread)

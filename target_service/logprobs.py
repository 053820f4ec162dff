"""Log-probabilities of emitted tokens: always the target's, at the position where the token was chosen."""

from __future__ import annotations

import torch

from specdec.v1 import sampling_pb2


def token_logprobs(
    token_id: int, logits: torch.Tensor, processed_logits: torch.Tensor | None, num_alternatives: int
) -> sampling_pb2.TokenLogprobs:
    """One entry of the answer.

    Args:
        token_id: the emitted token.
        logits: (vocab_size,), float32, as the model gave them.
        processed_logits: (vocab_size,), float32, after the request's rules; None at temperature 0.
        num_alternatives: how many of the most probable tokens to list.
    """
    raw = torch.log_softmax(logits, dim=-1)
    entry = sampling_pb2.TokenLogprobs(token_id=token_id, logprob=float(raw[token_id]))
    if processed_logits is not None:
        entry.processed_logprob = float(torch.log_softmax(processed_logits, dim=-1)[token_id])
    if num_alternatives:
        top = raw.topk(min(num_alternatives, raw.numel()))
        entry.top_token_ids.extend(top.indices.tolist())
        entry.top_logprobs.extend(top.values.tolist())
    return entry

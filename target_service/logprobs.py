"""Log-probabilities of emitted tokens: always the target's, at the position where the token was chosen."""

import torch

from specdec.sampling.chooser import Choice
from specdec.v1 import sampling_pb2


def token_logprobs(logits: torch.Tensor, choice: Choice, num_alternatives: int) -> sampling_pb2.TokenLogprobs:
    """One entry of the answer.

    Args:
        logits: (vocab_size,), float32, as the model gave them.
        choice: the emitted token and the law it was chosen by.
        num_alternatives: how many of the most probable tokens to list.
    """
    raw = torch.log_softmax(logits, dim=-1)
    entry = sampling_pb2.TokenLogprobs(token_id=choice.token_id, logprob=float(raw[choice.token_id]))
    if choice.is_sampled:
        processed = torch.log_softmax(choice.processed_logits, dim=-1)
        entry.processed_logprob = float(processed[choice.token_id])
    if num_alternatives:
        top = raw.topk(min(num_alternatives, raw.numel()))
        entry.top_token_ids.extend(top.indices.tolist())
        entry.top_logprobs.extend(top.values.tolist())
    return entry

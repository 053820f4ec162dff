"""What a model writes alone: the reference for everything that is faster."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from specdec.sampling.chooser import TokenChooser
from specdec.sampling.params import SamplingParams
from tests.specdec.runner.tiny_architectures import plain_logits
from tests.tiny_models import TINY_VOCAB_SIZE

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, seed=7)


def plain_text(model: PreTrainedModel, prompt: Sequence[int], params: SamplingParams, length: int) -> list[int]:
    """All tokens up to `length`: transformers' own attention, no cache, one token at a time."""
    chooser = TokenChooser(params, len(prompt), torch.device("cpu"))
    token_ids = list(prompt)
    while len(token_ids) < length:
        token_ids.append(chooser.choose(plain_logits(model, token_ids)[-1, :TINY_VOCAB_SIZE], token_ids))
    return token_ids

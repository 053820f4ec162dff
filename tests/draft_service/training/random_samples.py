"""Samples with random tokens and laws."""

from __future__ import annotations

import torch

from draft_service.training.samples import Sample
from tests.tiny_models import TINY_VOCAB_SIZE


def random_samples(
    count: int,
    *,
    first_index: int = 0,
    top: int = 8,
    seed: int = 0,
    vocab_size: int = TINY_VOCAB_SIZE,
    num_states: int = 0,
) -> list[Sample]:
    """Texts of 6 to 20 tokens; the first 2 and one in the middle have no law. Features of tiny models, or none."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for index in range(first_index, first_index + count):
        length = int(torch.randint(6, 21, (), generator=generator))
        logits = torch.randn((length - 3, vocab_size), generator=generator)
        logprobs = torch.log_softmax(logits * 3, -1).topk(top)
        positions = [position for position in range(2, length) if position != length // 2]
        samples.append(
            Sample(
                index=index,
                answer_start=length // 2 + 1,
                token_ids=torch.randint(vocab_size, (length,), generator=generator, dtype=torch.int32),
                law_positions=torch.tensor(positions, dtype=torch.int32),
                top_ids=logprobs.indices.to(torch.int32),
                top_logprobs=logprobs.values.to(torch.float16),
                features=torch.randn((length - 1, num_states, 32), generator=generator).bfloat16()
                if num_states
                else None,
            )
        )
    return samples

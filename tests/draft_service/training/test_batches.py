from __future__ import annotations

import torch

from draft_service.training.batches import BatchMaker
from tests.draft_service.training.random_samples import random_samples
from tests.tiny_models import TINY_VOCAB_SIZE

DRAFT_VOCAB = torch.arange(0, TINY_VOCAB_SIZE, 2)


def batch_maker(batch_tokens: int = 64) -> BatchMaker:
    return BatchMaker(DRAFT_VOCAB, TINY_VOCAB_SIZE, torch.device("cpu"), batch_tokens)


def test_each_law_stands_at_the_row_before_its_token() -> None:
    samples = random_samples(9)
    seen = 0
    for batch in batch_maker().batches(samples):
        assert batch.token_ids.numel() <= 64
        tokens = batch.token_ids.flatten()
        by_laws = {tuple(sample.top_logprobs.float()[0].tolist()): sample for sample in samples}
        start = 0
        while start < batch.num_laws:
            sample = by_laws[tuple(batch.logprobs[start].tolist())]
            count = len(sample.law_positions)
            rows = batch.rows[start : start + count]
            assert torch.equal(tokens[rows], sample.token_ids[sample.law_positions.long() - 1].long())
            draft_ids = batch.draft_ids[start : start + count]
            in_vocab = sample.top_ids % 2 == 0
            assert torch.equal(draft_ids >= 0, in_vocab)
            assert torch.equal(DRAFT_VOCAB[draft_ids[in_vocab]], sample.top_ids[in_vocab].long())
            start += count
            seen += 1
    assert seen == len(samples)


def test_a_text_longer_than_a_batch_is_a_batch() -> None:
    sizes = [len(batch.token_ids) for batch in batch_maker(batch_tokens=5).batches(random_samples(4))]
    assert sizes == [1, 1, 1, 1]


def test_every_text_is_visited_before_any_is_visited_again() -> None:
    samples = random_samples(200)
    maker, visits = batch_maker(), dict[int, int]()
    while min(visits.get(sample.index, 0) for sample in samples) < 3:
        counts = [visits.get(sample.index, 0) for sample in samples]
        assert max(counts) - min(counts) <= 1
        maker.block(samples, visits, seed=0)
    # New text is caught up with first.
    maker.block([*samples, *random_samples(20, first_index=200)], visits, seed=0)
    assert all(visits[index] == 1 for index in range(200, 220))


def test_the_next_block_follows_from_the_visits_and_the_seed() -> None:
    samples = random_samples(100)
    visits: dict[int, int] = {}
    batch_maker().block(samples, visits, seed=0)

    def following(seed: int) -> list[list[int]]:
        return [batch.token_ids.flatten().tolist() for batch in batch_maker().block(samples, dict(visits), seed)]

    assert following(0) == following(0)
    assert following(0) != following(1)

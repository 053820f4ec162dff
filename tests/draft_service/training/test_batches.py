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


def test_features_lie_at_their_positions() -> None:
    samples = random_samples(9, num_states=2)
    by_tokens = {tuple(sample.token_ids.tolist()): sample for sample in samples}
    forgotten = {samples[3].index: 0.5, samples[4].index: 0.0}
    found = 0
    for batch in batch_maker().batches(samples, forgotten):
        assert batch.features is not None
        assert batch.features.dtype == torch.float32
        for token_ids, features in zip(batch.token_ids, batch.features, strict=True):
            length, sample = next(
                (length, by_tokens[key])
                for length in range(len(token_ids), 0, -1)
                if (key := tuple(token_ids[:length].tolist())) in by_tokens
            )
            assert sample.features is not None
            # Half of one text's are forgotten, its first half.
            first = len(sample.features) // 2 if sample is samples[3] else 0
            # Of what lower layers give nothing is ever lost.
            assert not features[:first, -1].any()
            assert torch.equal(features[: length - 1, 0], sample.features[:, 0].float())
            assert torch.equal(features[first : length - 1], sample.features[first:].float())
            assert not features[length - 1 :].any(), "of the last token and of padding there are none"
            found += 1
    assert found == 9


def test_of_some_texts_the_beginning_is_forgotten_in_training() -> None:
    samples = random_samples(400, num_states=1)
    num_blank = []
    for batch in batch_maker(1024).block(samples, {}, seed=0):
        assert batch.features is not None
        for features in batch.features:
            known = features.any(-1).any(-1).tolist()
            num_blank.append(known.index(True) if True in known else len(known))
    share = sum(count > 0 for count in num_blank) / len(num_blank)
    assert 0.05 < share < 0.2
    assert len(set(num_blank)) > 4


def test_without_features_there_are_none() -> None:
    assert all(batch.features is None for batch in batch_maker().batches(random_samples(3)))


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

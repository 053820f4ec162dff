"""Integer laws: how they are made, how they travel, and how tokens are drawn from them."""

from __future__ import annotations

from fractions import Fraction

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from scipy import stats

from specdec.errors import InvalidArgumentError
from specdec.sampling.laws import CounterDraws, DraftLaw, TargetLaw
from specdec.sampling.noise import Stream
from specdec.sampling.params import MAX_DRAFT_LAW_SIZE
from specdec.v1 import model_pb2

FALSE_ALARM = 1e-4
VOCAB = 50


def distribution(**changes: object) -> model_pb2.DraftDistribution:
    fields: dict[str, object] = {"token_ids": [4, 7, 9], "weights": [5, 3, 1], **changes}
    return model_pb2.DraftDistribution(**fields)  # type: ignore[arg-type]


class Recorded:
    """Draws that note what they are asked and always take the first possibility."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int, Stream, int]] = []

    def happens(self, numerator: int, denominator: int, position: int) -> bool:
        raise AssertionError("no decision is expected")

    def pick(self, weights: torch.Tensor | list[int], position: int, stream: Stream, nth: int = 0) -> int:
        values = weights if isinstance(weights, list) else [int(weight) for weight in weights]
        self.asked.append((values, position, stream, nth))
        return next(index for index, weight in enumerate(values) if weight)


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60), st.integers(1, 64))
def test_draft_law_is_the_rounded_softmax_of_its_largest_tokens(values: list[float], max_size: int) -> None:
    logits = torch.tensor(values)
    law = DraftLaw.from_logits(logits, max_size)
    probabilities = torch.softmax(logits.double(), 0)
    top = probabilities.topk(min(max_size, len(values)))
    assert law.total == sum(law.weights.values())
    assert list(law.weights.values()) == sorted(law.weights.values(), reverse=True)
    assert all(weight >= 1 for weight in law.weights.values())
    assert set(law.weights) <= set(top.indices.tolist())
    kept = float(top.values.sum())
    assert law.lost_mass == pytest.approx(1 - kept, abs=1e-9)
    for token, weight in law.weights.items():
        assert weight / 65535 == pytest.approx(float(probabilities[token]) / kept, abs=1e-5)


def test_excluded_tokens_have_no_place_in_a_draft_law() -> None:
    logits = torch.tensor([1.0, -torch.inf, 0.5, -torch.inf])
    assert set(DraftLaw.from_logits(logits, 4).weights) == {0, 2}


def test_draft_law_travels_unchanged() -> None:
    law = DraftLaw.from_logits(torch.randn(VOCAB, generator=torch.Generator().manual_seed(0)), 8)
    message = model_pb2.DraftDistribution.FromString(law.to_proto().SerializeToString())
    for token in law.weights:
        read = DraftLaw.from_proto(message, token, VOCAB)
        assert (dict(read.weights), read.total) == (dict(law.weights), law.total)
        assert read.lost_mass == pytest.approx(law.lost_mass)


@pytest.mark.parametrize(
    ("message", "token", "reason"),
    [
        (distribution(weights=[5, 3]), 4, "one weight for each token"),
        (distribution(token_ids=[4, 7, 4]), 4, "names a token twice"),
        (distribution(weights=[5, 3, 0]), 4, "weight of 0"),
        (distribution(), 5, "probability 0"),
        (distribution(token_ids=[4, 7, VOCAB]), 4, f"outside the vocabulary of {VOCAB}"),
        (distribution(token_ids=[], weights=[]), 4, "probability 0"),
        (
            distribution(token_ids=range(MAX_DRAFT_LAW_SIZE + 1), weights=[1] * (MAX_DRAFT_LAW_SIZE + 1)),
            4,
            "at most 1024",
        ),
    ],
)
def test_malformed_draft_laws_are_refused(message: model_pb2.DraftDistribution, token: int, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        DraftLaw.from_proto(message, token, VOCAB)


@given(st.lists(st.floats(-60, 30, width=32), min_size=1, max_size=60))
def test_target_law_is_the_softmax_to_one_part_in_two_to_the_forty(values: list[float]) -> None:
    logits = torch.tensor(values)
    law = TargetLaw.from_logits(logits, is_greedy=False)
    probabilities = torch.softmax(logits.double(), 0)
    weights = law.weights_of(range(len(values)))
    assert weights == [law.weight(token) for token in range(len(values))]
    assert law.total == sum(weights)
    for weight, probability in zip(weights, probabilities.tolist(), strict=True):
        assert abs(Fraction(weight, 2**40) - Fraction(probability)) <= Fraction(1, 2**41)


def test_a_greedy_target_law_is_all_on_one_token() -> None:
    law = TargetLaw.from_logits(torch.tensor([0.0, 3.0, 3.0]), is_greedy=True)
    assert (law.total, law.weights_of([0, 1, 2])) == (1, [0, 1, 0])


def test_laws_are_drawn_from_in_streams_of_their_own() -> None:
    draws = Recorded()
    target = TargetLaw(torch.tensor([0, 5, 2, 1]))
    assert DraftLaw({7: 3, 2: 1}, 4).sample(draws, 10) == 7
    assert target.sample(draws, 11) == 1
    assert target.sample_outside([1, 3], draws, 12) == 2
    assert draws.asked == [
        ([3, 1], 10, Stream.DRAFT, 0),
        ([0, 5, 2, 1], 11, Stream.RESIDUAL, 0),
        ([0, 0, 2, 0], 12, Stream.RESIDUAL, 1),
    ]
    assert target.weights_of([0, 1, 2, 3]) == [0, 5, 2, 1]


@pytest.mark.parametrize("weights", [[1, 2, 3, 4], [0, 7, 0, 1, 0], [2**40, 1, 2**40]])
def test_counter_draws_pick_by_weight_from_lists_and_tensors_alike(weights: list[int]) -> None:
    picked = []
    for position in range(2_000):
        draws = CounterDraws(seed=5, base_length=position // 3)
        index = draws.pick(weights, position, Stream.RESIDUAL)
        assert draws.pick(torch.tensor(weights), position, Stream.RESIDUAL) == index
        picked.append(index)
    observed = [picked.count(index) for index in range(len(weights))]
    expected = [weight / sum(weights) * len(picked) for weight in weights]
    kept = [index for index, value in enumerate(expected) if value > 1]
    assert sum(observed[index] for index in kept) >= len(picked) - 1
    scale = sum(observed[index] for index in kept) / sum(expected[index] for index in kept)
    result = stats.chisquare([observed[index] for index in kept], [expected[index] * scale for index in kept])
    assert result.pvalue > FALSE_ALARM


def test_nothing_to_pick_from_is_a_bug() -> None:
    with pytest.raises(ValueError, match="no weight"):
        CounterDraws(0, 0).pick([0, 0], 1, Stream.RESIDUAL)


def test_an_event_happens_as_often_as_it_should() -> None:
    for numerator, denominator in ((0, 7), (7, 7), (9, 7), (1, 2), (1, 2**90)):
        happened = sum(CounterDraws(3, 4).happens(numerator, denominator, position) for position in range(2_000))
        expected = min(1.0, numerator / denominator)
        assert stats.binomtest(happened, 2_000, expected).pvalue > FALSE_ALARM


def test_decisions_repeat_for_a_repeated_round_and_differ_for_another() -> None:
    def decisions(seed: int, base_length: int) -> list[bool]:
        return [CounterDraws(seed, base_length).happens(1, 2, position) for position in range(100, 164)]

    assert decisions(1, 100) == decisions(1, 100)
    assert len({tuple(decisions(seed, base)) for seed, base in ((1, 100), (1, 101), (2, 100))}) == 3

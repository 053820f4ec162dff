"""Lookup or model, by what each has brought."""

from __future__ import annotations

import pytest

from draft_service.drafters.source_choice import ServiceEstimates, SourceChoice
from draft_service.drafters.suffix_lookup import Found
from specdec.v1 import draft_pb2

RIGHT, WRONG = (1, 2, 3, 4), (6, 7, 8, 9)
K = 4


def offer(
    token_ids: tuple[int, ...] = RIGHT,
    confidence: float = 0.5,
    source: draft_pb2.DraftSource.ValueType = draft_pb2.DRAFT_SOURCE_SUFFIX,
) -> Found:
    return Found(token_ids, 3, confidence, source)


@pytest.fixture
def service() -> ServiceEstimates:
    return ServiceEstimates()


@pytest.fixture
def choice(service: ServiceEstimates) -> SourceChoice:
    return SourceChoice(service, model_cost=1.1)


def test_without_an_offer_the_model_is_asked(choice: SourceChoice) -> None:
    assert choice.choose([], K) is None


@pytest.mark.parametrize(("confidence", "is_taken"), [(0.2, False), (0.4, False), (0.5, True), (0.8, True)])
def test_before_anything_is_known_confidence_decides(choice: SourceChoice, confidence: float, is_taken: bool) -> None:
    found = offer(confidence=confidence)
    assert (choice.choose([found], K) is found) == is_taken


def test_a_short_draft_must_be_surer_than_a_long_one(choice: SourceChoice) -> None:
    assert choice.choose([offer(confidence=0.6)], K) is not None
    assert choice.choose([offer(RIGHT[:1], confidence=0.6)], K) is None


def test_of_several_offers_the_one_that_will_bring_most_is_taken(choice: SourceChoice) -> None:
    short, long, unsure = offer(RIGHT[:2], 0.9), offer(RIGHT, 0.85), offer(RIGHT, 0.5)
    assert choice.choose([short, long, unsure], K) is long
    assert choice.choose([short, offer(WRONG[:2], 0.9)], K) is short


def test_a_lookup_that_comes_true_is_trusted_more_and_one_that_does_not_less(choice: SourceChoice) -> None:
    doubtful, sure = offer(confidence=0.3), offer(confidence=0.9)
    assert choice.choose([doubtful], K) is None
    for _ in range(10):
        choice.learn([doubtful], RIGHT, K, RIGHT)
    assert choice.choose([doubtful], K) is None, "the model was as good, and brings more when it is sure"
    for _ in range(30):
        choice.learn([doubtful], WRONG, K, RIGHT)
    assert choice.choose([doubtful], K) is doubtful
    assert choice.choose([sure], K) is sure
    for _ in range(60):
        choice.learn([offer(WRONG, 0.9)], RIGHT, K, RIGHT)
    assert choice.choose([sure], K) is None


def test_a_lookup_is_judged_in_rounds_of_the_model_too(service: ServiceEstimates, choice: SourceChoice) -> None:
    found = offer()
    choice.learn([found], WRONG, K, (*RIGHT[:2], 7))
    estimate = service.of_lookup(found)
    assert (estimate.num_accepted, estimate.num_rejected) == (2, 1)


def test_what_was_not_judged_is_neither_right_nor_wrong(service: ServiceEstimates, choice: SourceChoice) -> None:
    found = offer()
    choice.learn([found], None, K, RIGHT[:2])
    estimate = service.of_lookup(found)
    assert (estimate.num_accepted, estimate.num_rejected) == (2, 0)
    choice.learn([], RIGHT, K, RIGHT[:2])
    assert (service.model.num_accepted, service.model.num_rejected) == (2, 0)


def test_a_model_that_ends_its_window_early_is_not_taken_for_a_better_one(service: ServiceEstimates) -> None:
    choice = SourceChoice(service, model_cost=1.1)
    choice.learn([], RIGHT[:1], K, (1, 5))
    assert (service.model.num_accepted, service.model.num_rejected) == (1, 1)
    choice.learn([], (), K, (1,))
    assert service.model.num_rejected > 1.9


def test_sources_and_confidences_are_told_apart(service: ServiceEstimates, choice: SourceChoice) -> None:
    own = offer(confidence=0.8)
    memory = offer(confidence=0.8, source=draft_pb2.DRAFT_SOURCE_MEMORY)
    for _ in range(60):
        choice.learn([own, offer(WRONG, 0.8, draft_pb2.DRAFT_SOURCE_MEMORY)], None, K, RIGHT)
    assert choice.choose([own], K) is own
    assert choice.choose([memory], K) is None
    assert choice.choose([offer(confidence=0.95, source=draft_pb2.DRAFT_SOURCE_MEMORY)], K) is not None
    # However many there are, the estimates stay few.
    for confidence in range(1000):
        service.of_lookup(offer(confidence=confidence / 1000))
    assert len(service.lookups) <= 20


def test_lookups_are_learnt_of_by_all_sequences_and_models_as_a_prior(service: ServiceEstimates) -> None:
    first, second = SourceChoice(service, 1.1), SourceChoice(service, 1.1)
    found = offer(confidence=0.5)
    for _ in range(60):
        first.learn([found], WRONG, K, RIGHT)
    assert second.choose([offer(confidence=0.3)], K) is not None, "the model was never right"
    for _ in range(10):
        second.learn([], RIGHT, K, RIGHT)
    assert second.choose([offer(confidence=0.3)], K) is None, "but in this sequence it is"
    assert first.choose([offer(confidence=0.3)], K) is not None


def test_a_model_that_is_not_asked_is_given_another_chance(service: ServiceEstimates) -> None:
    choice, other = SourceChoice(service, 1.1), SourceChoice(service, 1.1)
    found = offer(confidence=0.35)
    for _ in range(60):
        choice.learn([], WRONG, K, RIGHT)
    assert choice.choose([found], K) is found
    # Meanwhile the model does well elsewhere, and here the lookup does as it did.
    for _ in range(60):
        other.learn([], RIGHT, K, RIGHT)
    rounds = 0
    while choice.choose([found], K) is found:
        rounds += 1
        choice.learn([offer((*RIGHT[:1], *WRONG[1:]), 0.35)] if rounds % 2 else [offer(WRONG, 0.35)], None, K, RIGHT)
        assert rounds < 100
    assert rounds > 3


@pytest.mark.parametrize(("model_cost", "is_taken"), [(1.0, False), (1.2, False), (1.6, True), (3.0, True)])
def test_the_more_a_model_costs_the_more_it_must_bring(
    service: ServiceEstimates, model_cost: float, is_taken: bool
) -> None:
    assert (SourceChoice(service, model_cost).choose([offer(confidence=0.25)], K) is not None) == is_taken

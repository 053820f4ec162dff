"""A language model ends its window where it is unsure: by its laws, never by the token that comes next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from specdec.sampling.chooser import TokenChooser
from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2
from tests.draft_service.driving import Client, ModelEngine
from tests.plain_decoding import GREEDY, SAMPLED, plain_text
from tests.specdec.runner.tiny_architectures import plain_logits
from tests.tiny_models import tiny_llama

PROMPT = (5, 9, 200)
K = 6
WARM = SamplingParams(temperature=0.5, top_k=8, seed=3)
BOTH = pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
ALL_RULES = (
    model_pb2.ACCEPTANCE_RULE_COUPLED,
    model_pb2.ACCEPTANCE_RULE_REJECTION,
    model_pb2.ACCEPTANCE_RULE_BLOCK,
)
RULES = pytest.mark.parametrize("rule", ALL_RULES)


def survivals(params: SamplingParams, committed: Sequence[int], path: Sequence[int]) -> list[float]:
    """Product of the largest probabilities up to each token of a whole window, by hand."""
    chooser = TokenChooser(params, len(PROMPT), torch.device("cpu"))
    largest = []
    for length in range(len(path)):
        logits = plain_logits(tiny_llama(), [*committed, *path[:length]])[-1]
        processed = chooser.process(logits, committed, path[:length])
        largest.append(float(torch.softmax(processed.double(), -1).max()))
    return list(itertools.accumulate(largest, float.__mul__))


def draft(
    params: SamplingParams, confidence_threshold: float, rule: model_pb2.AcceptanceRule.ValueType = ALL_RULES[0]
) -> list[int]:
    engine = ModelEngine(confidence_threshold=confidence_threshold)
    return list(Client(engine, PROMPT, params, rule=rule).open(K).token_ids)


@BOTH
@RULES
def test_a_window_ends_before_its_probability_falls_below_the_threshold(
    params: SamplingParams, rule: model_pb2.AcceptanceRule.ValueType
) -> None:
    whole = draft(params, 0.0, rule)
    assert len(whole) == K
    products = survivals(params, PROMPT, whole)
    assert products[0] > products[-1] > 0
    for length, product in enumerate(products):
        assert draft(params, product * 1.001, rule) == whole[:length]
        assert draft(params, product * 0.999, rule)[: length + 1] == whole[: length + 1]


def test_at_temperature_0_it_is_the_law_of_temperature_1() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0])
    chooser = TokenChooser(GREEDY, 1, torch.device("cpu"))
    assert chooser.confidence(logits, [0]) == pytest.approx(math.exp(2) / (1 + math.exp(2) + math.exp(1)))
    biased = TokenChooser(SamplingParams(temperature=0.0, banned_token_ids=(1,)), 1, torch.device("cpu"))
    assert biased.confidence(logits, [0]) == pytest.approx(math.exp(1) / (1 + math.exp(1)))


@RULES
def test_the_token_sampled_has_no_say(rule: model_pb2.AcceptanceRule.ValueType) -> None:
    (largest,) = survivals(SAMPLED, PROMPT, [0])
    sampled = set()
    for seed in range(20):
        params = replace(SAMPLED, seed=seed)
        assert draft(params, largest * 1.001, rule) == []
        sampled.add(draft(params, largest * 0.999, rule)[0])
    # Improbable ones among them.
    assert len(sampled) > 5


@pytest.mark.parametrize(("params", "threshold"), [(GREEDY, 0.05), (WARM, 0.3)], ids=["greedy", "sampled"])
def test_rounds_go_on_behind_windows_of_any_length(params: SamplingParams, threshold: float) -> None:
    text = plain_text(tiny_llama(), PROMPT, params, 80)
    client = Client(ModelEngine(confidence_threshold=threshold), PROMPT, params)
    proposal = client.open(K)
    lengths = set()
    while len(client.token_ids) < 60:
        drafted = len(proposal.token_ids)
        lengths.add(drafted)
        length = len(client.token_ids)
        # The same weights: all that is proposed is right.
        assert list(proposal.token_ids) == text[length : length + drafted]
        proposal = client.commit(drafted, text[length + drafted], K)
    assert 0 in lengths
    assert max(lengths) >= 2


def test_one_sequence_that_ends_leaves_the_others_alone() -> None:
    (largest,) = survivals(WARM, PROMPT, [0])
    (other,) = survivals(WARM, PROMPT[:2], [0])
    assert largest != pytest.approx(other)
    engine = ModelEngine(confidence_threshold=(largest + other) / 2)
    clients = [Client(engine, PROMPT, WARM), Client(engine, PROMPT[:2], WARM)]
    for client in clients:
        engine.tell(client.connection, client.open_command(1))
    engine.work()
    counts = [len(client.take(event, 1).token_ids) for client in clients for event in client.connection.take()]
    assert counts == ([1, 0] if largest > other else [0, 1])


def test_without_a_threshold_nothing_is_computed_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(TokenChooser, "confidence")
    assert len(draft(WARM, 0.0)) == K

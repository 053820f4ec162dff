"""Sampling rules and log-probabilities hold at every position of a window, exactly as without drafts."""

from __future__ import annotations

import pytest
import torch

from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2, sampling_pb2
from target_service.logprobs import token_logprobs
from tests.plain_decoding import plain_text
from tests.specdec.runner.tiny_architectures import plain_logits
from tests.target_service.driving import Client, Drafting, Drafts, Target, generate
from tests.tiny_models import tiny_llama

LENGTH = 40
REPEATING = [5] * 6

RULES: dict[str, dict[str, object]] = {
    "frequency_penalty": {"frequency_penalty": 2.0},  # B22
    "presence_penalty": {"presence_penalty": 2.0},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 30, "stop_token_ids": tuple(range(100, 300))},
    "biased_against": {"logit_bias": {30: -100.0, 77: -100.0}},  # B23
    "biased_towards": {"logit_bias": {77: 4.0}},
    "allowed": {"allowed_token_ids": tuple(range(50, 100))},
    "banned": {"banned_token_ids": tuple(range(100, 300))},
    "together": {
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {5: 3.0},
        "top_k": 50,
        "top_p": 0.95,
        "min_p": 0.01,
    },
}
ALL_RULES = pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
TEMPERATURES = pytest.mark.parametrize("temperature", [0.0, 0.8])


def make(temperature: float, rules: dict[str, object], **more: object) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=5, **{**rules, **more})  # type: ignore[arg-type]


def drafting_from(text: list[int]) -> Drafting:
    """Windows of 4: right, wrong from some position on, or all the same token, in turns."""

    def draft(client: Client) -> Drafts:
        position = len(client.token_ids)
        drafts = [*text[position : position + 4], 1, 1, 1, 1][:4]
        if client.round % 3 == 1:
            return [*drafts[:2], (drafts[2] + 1) % 320, drafts[3]], None
        if client.round % 3 == 2:
            return [5, 5, 5, 5], None
        return drafts, None

    return draft


@ALL_RULES
@TEMPERATURES
def test_rules_hold_at_every_position(rules: dict[str, object], temperature: float) -> None:
    params = make(temperature, rules)
    text = plain_text(tiny_llama(), REPEATING, params, LENGTH)
    client = Client(Target(), REPEATING, params, max_length=LENGTH)
    assert generate(client, drafting_from(text)) == text
    assert max(client.num_accepted) >= 2


@ALL_RULES
def test_each_of_the_rules_matters_here(rules: dict[str, object]) -> None:
    without = plain_text(tiny_llama(), REPEATING, make(0.8, {}), LENGTH)
    assert plain_text(tiny_llama(), REPEATING, make(0.8, rules), LENGTH) != without


@TEMPERATURES
def test_logprobs_are_those_of_plain_decoding(temperature: float) -> None:
    # B25: K = 4 with rejections against K = 0, every entry.
    params = make(temperature, RULES["together"], num_logprobs=2)
    plain = Client(Target(), REPEATING, params, max_length=LENGTH)
    expected = list(plain.open().logprobs)
    while len(plain.token_ids) < LENGTH:
        expected += plain.verify().logprobs
    client = Client(Target(), REPEATING, params, max_length=LENGTH)
    found = list(client.open().logprobs)
    draft = drafting_from(plain.token_ids)
    while len(client.token_ids) < LENGTH:
        verdict = client.verify(*draft(client))
        assert len(verdict.logprobs) == client.num_accepted[-1] + 1
        found += verdict.logprobs
    assert {0, 2, 4} <= set(client.num_accepted)
    assert [entry.token_id for entry in found] == client.token_ids[len(REPEATING) :]
    for ours, theirs in zip(found, expected, strict=True):
        assert_same_entry(ours, theirs)


def assert_same_entry(found: sampling_pb2.TokenLogprobs, expected: sampling_pb2.TokenLogprobs) -> None:
    assert found.token_id == expected.token_id
    assert found.logprob == pytest.approx(expected.logprob, abs=1e-4)
    assert found.HasField("processed_logprob") == expected.HasField("processed_logprob")
    assert found.processed_logprob == pytest.approx(expected.processed_logprob, abs=1e-4)
    assert list(found.top_token_ids) == list(expected.top_token_ids)
    assert list(found.top_logprobs) == pytest.approx(list(expected.top_logprobs), abs=1e-4)


@TEMPERATURES
def test_logprobs_are_the_models(temperature: float) -> None:
    params = make(temperature, {"logit_bias": {9: 2.0}}, num_logprobs=3)
    model = tiny_llama()
    client = Client(Target(model), REPEATING, params, max_length=LENGTH)
    client.open()
    text = plain_text(model, REPEATING, params, LENGTH)
    verdict = client.verify([*text[7:9], (text[9] + 1) % 320])
    assert client.num_accepted[-1] == 2
    for offset, entry in enumerate(verdict.logprobs):
        logits = plain_logits(model, text[: 7 + offset])[-1]
        law = torch.log_softmax(logits, 0)
        assert entry.token_id == text[7 + offset]
        assert entry.logprob == pytest.approx(float(law[entry.token_id]), abs=1e-4)
        assert list(entry.top_token_ids) == law.topk(3).indices.tolist()
        assert list(entry.top_logprobs) == pytest.approx(law.topk(3).values.tolist(), abs=1e-4)
        biased = logits + 2.0 * (torch.arange(320) == 9)
        if temperature:
            processed = torch.log_softmax(biased / temperature, 0)
            assert entry.processed_logprob == pytest.approx(float(processed[entry.token_id]), abs=1e-4)
        else:
            assert not entry.HasField("processed_logprob")


def test_logprobs_follow_the_path_through_a_tree() -> None:
    params = make(0.8, RULES["frequency_penalty"], num_logprobs=0)
    text = plain_text(tiny_llama(), REPEATING, params, LENGTH)
    chain, tree = (Client(Target(), REPEATING, params) for _ in range(2))
    chain.open()
    tree.open()
    expected = chain.verify(text[7:9])
    found = tree.verify([(text[7] + 1) % 320, text[7], 3, text[8]], [-1, -1, 0, 1])
    assert list(found.accepted_nodes) == [1, 3]
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        assert_same_entry(ours, theirs)
        assert list(ours.top_token_ids) == []


def test_without_being_asked_no_logprobs_are_sent() -> None:
    client = Client(Target(), REPEATING, make(0.0, {}))
    assert list(client.open().logprobs) == []
    assert list(client.verify([1, 2]).logprobs) == []


def test_no_more_alternatives_than_there_are_tokens() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0])
    entry = token_logprobs(0, logits, None, 20)
    assert list(entry.top_token_ids) == [1, 2, 0]
    assert entry.logprob == pytest.approx(float(torch.log_softmax(logits, 0)[0]))


@pytest.mark.parametrize("rule", [model_pb2.ACCEPTANCE_RULE_REJECTION, model_pb2.ACCEPTANCE_RULE_BLOCK])
@pytest.mark.parametrize("name", RULES)
def test_other_acceptance_rules_hold_the_same_sampling_rules_when_greedy(
    rule: model_pb2.AcceptanceRule.ValueType, name: str
) -> None:
    # With all of the law on one token, and deterministic drafts, every rule must give the greedy text.
    params = make(0.0, RULES[name])
    text = plain_text(tiny_llama(), REPEATING, params, LENGTH)
    client = Client(Target(), REPEATING, params, max_length=LENGTH, rule=rule)
    assert generate(client, drafting_from(text)) == text
    assert max(client.num_accepted) >= 2

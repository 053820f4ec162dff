"""Rejection and block rule: a draft that reads what the target has in mind does not change the law of the text."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from dataclasses import replace

import pytest
import torch

from draft_service.drafters.drafter import Drafter
from draft_service.drafters.making import causal_lm_drafter
from specdec.models.loading import LoadedModel
from specdec.runner.attention import ATTENTION_NAME
from specdec.sampling.params import SamplingParams
from specdec.tokenizer_files import TokenizerFiles
from specdec.v1 import model_pb2
from tests.draft_service.training.running import lively_student
from tests.exactness.goodness_of_fit import Tokens, assert_follows
from tests.exactness.round_driver import Text, draft_settings, driving
from tests.exactness.wrong.rejection_and_block import no_residual
from tests.specdec.runner.tiny_architectures import plain_logits
from tests.tiny_models import tiny_llama

VOCAB_SIZE = 3
PROMPT = (2, 0, 1, 1, 2)
NUM_TOKENS = 5
"""The first comes with the open, three from the first window if all is accepted, and then features have come."""
NUM_DRAFT_TOKENS = 2
NUM_TEXTS = 1500
PARAMS = SamplingParams(temperature=2.5)
RULES = pytest.mark.parametrize(
    "rule", [model_pb2.ACCEPTANCE_RULE_REJECTION, model_pb2.ACCEPTANCE_RULE_BLOCK], ids=["rejection", "block"]
)


def loaded_target() -> LoadedModel:
    info = model_pb2.ModelInfo(vocab_size=VOCAB_SIZE, max_context_length=64, dtype="float32", device="cpu")
    return LoadedModel(tiny_llama(vocab_size=VOCAB_SIZE), info, TokenizerFiles(b"", "", {}))


def reading_draft() -> Drafter:
    """Guesses at random from the target's states: each of them moves its laws."""
    target = loaded_target()
    student = lively_student(target.model, (1,), torch.arange(VOCAB_SIZE))
    student.set_attn_implementation(ATTENTION_NAME)
    student.requires_grad_(requires_grad=False)
    target.info.MergeFrom(model_pb2.ModelInfo(hidden_size=32, feature_states=[1], max_feature_tokens=64))
    return causal_lm_drafter(LoadedModel(student, target.info, target.tokenizer_files), draft_settings())


@functools.cache
def expected_law() -> dict[Tokens, float]:
    """Of the first tokens, by the chain rule and plain forwards."""
    model = tiny_llama(vocab_size=VOCAB_SIZE)
    law: dict[Tokens, float] = {(): 1.0}
    for _ in range(NUM_TOKENS):
        longer: dict[Tokens, float] = {}
        for tokens, probability in law.items():
            logits = plain_logits(model, [*PROMPT, *tokens])[-1].double() / PARAMS.temperature
            for token, each in enumerate(torch.softmax(logits, -1).tolist()):
                grown = (*tokens, token)
                longer[grown] = probability * each
        law = longer
    return law


async def texts(rule: model_pb2.AcceptanceRule.ValueType) -> list[Text]:
    async with driving(loaded_target(), reading_draft, rule, feature_states=(1,)) as driver:
        written = [
            Text(list(PROMPT), len(PROMPT), replace(PARAMS, seed=seed), NUM_DRAFT_TOKENS) for seed in range(NUM_TEXTS)
        ]
        await driver.generate(written, NUM_TOKENS)
    return written


def check(rule: model_pb2.AcceptanceRule.ValueType) -> None:
    written = asyncio.run(texts(rule))
    drafted, accepted = sum(text.num_drafted for text in written), sum(text.num_accepted for text in written)
    assert 0.2 < accepted / drafted < 0.9
    counts = Counter(text.output[:NUM_TOKENS] for text in written)
    assert_follows(counts, expected_law(), "with features")


@RULES
def test_the_law_is_the_targets(rule: model_pb2.AcceptanceRule.ValueType) -> None:
    check(rule)


def test_a_wrong_rule_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    no_residual.apply(monkeypatch)
    with pytest.raises(AssertionError, match="with features"):
        check(model_pb2.ACCEPTANCE_RULE_REJECTION)

"""A trained draft in the draft engine: the target's text, and nothing proposed outside the draft vocabulary."""

from __future__ import annotations

import functools

import pytest
import torch
from safetensors.torch import load_file

from draft_service.drafters.making import make_drafter
from draft_service.settings import DraftSettings
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.sampling.laws import DraftLaw
from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2
from target_service.judge import DraftWindow, Judge
from tests.draft_service.conftest import Trained
from tests.draft_service.driving import Client, Engine
from tests.plain_decoding import GREEDY, SAMPLED, plain_text
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

CPU = torch.device("cpu")
PROMPTS = [(5, 9, 200), (40, 41, 42, 43, 44, 45), (7,)]
LENGTH = 60
RULES = pytest.mark.parametrize("rule", [model_pb2.ACCEPTANCE_RULE_REJECTION, model_pb2.ACCEPTANCE_RULE_BLOCK])
# Rules that meet the -inf of tokens outside the draft vocabulary in every processor.
MANY_RULES = SamplingParams(
    temperature=1.3,
    top_k=50,
    top_p=0.95,
    typical_p=0.9,
    min_p=0.001,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    presence_penalty=0.1,
    no_repeat_ngram_size=3,
    seed=4,
)


@functools.cache
def target() -> ModelRunner:
    """The model that the draft was trained for."""
    return ModelRunner(tiny_llama(), TINY_VOCAB_SIZE)


def engine_of(trained: Trained) -> Engine:
    return Engine(make_drafter(DraftSettings(drafter="model", model=str(trained.out), device="cpu")))


def run(
    engine: Engine,
    prompt: tuple[int, ...],
    params: SamplingParams,
    rule: model_pb2.AcceptanceRule.ValueType,
    length: int,
) -> tuple[list[int], list[DraftLaw], list[int]]:
    """Rounds with 1 to 5 draft tokens; returns the text, the draft laws, and the accepted counts."""
    client = Client(engine, prompt, params, rule=rule)
    judge = Judge(params, len(prompt), rule, CPU)
    laws: list[DraftLaw] = []
    accepted = []
    proposal = client.open(3)
    while len(client.token_ids) < length:
        window = list(proposal.token_ids)
        of_window = [
            DraftLaw.from_proto(law, token, TINY_VOCAB_SIZE)
            for law, token in zip(proposal.distributions, window, strict=bool(proposal.distributions))
        ]
        laws += of_window
        text = [*client.token_ids, *window]
        logits = target().forward([Work(SequenceCache(), text, len(window) + 1)])[0]
        verdict = judge.decide(client.token_ids, DraftWindow(window, laws=of_window or None), logits)
        accepted.append(len(verdict.accepted_nodes))
        proposal = client.commit(accepted[-1], verdict.next_token_id, 1 + len(accepted) % 5)
    return client.token_ids, laws, accepted


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, MANY_RULES], ids=["greedy", "sampled", "many rules"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_text_is_that_of_the_target_alone(
    trained_on_tokens: Trained, prompt: tuple[int, ...], params: SamplingParams
) -> None:
    text, _, accepted = run(engine_of(trained_on_tokens), prompt, params, model_pb2.ACCEPTANCE_RULE_COUPLED, LENGTH)
    expected = plain_text(tiny_llama(), prompt, params, len(text))
    assert text == expected
    assert sum(accepted) > 0


@RULES
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, MANY_RULES], ids=["greedy", "sampled", "many rules"])
def test_laws_have_no_token_outside_the_draft_vocabulary(
    either: Trained, rule: model_pb2.AcceptanceRule.ValueType, params: SamplingParams
) -> None:
    draft_vocab = set(load_file(either.out / "model.safetensors")["draft_vocab"].tolist())
    text, laws, accepted = run(engine_of(either), PROMPTS[0], params, rule, LENGTH)
    assert laws
    assert all(draft_vocab.issuperset(law.weights) for law in laws)
    # Here nobody sends the target's features, which a draft that reads them must live with.
    assert sum(accepted) > 0 or either.settings.upper_layers is None
    # The target's own tokens may lie outside, and some do.
    assert params is GREEDY or not draft_vocab.issuperset(text[len(PROMPTS[0]) :])


def test_rules_that_leave_no_token_of_the_draft_vocabulary_give_no_draft(trained: Trained) -> None:
    draft_vocab = set(load_file(trained.out / "model.safetensors")["draft_vocab"].tolist())
    outside = tuple(token for token in range(TINY_VOCAB_SIZE) if token not in draft_vocab)
    for rule in (model_pb2.ACCEPTANCE_RULE_COUPLED, model_pb2.ACCEPTANCE_RULE_REJECTION):
        params = SamplingParams(temperature=0.8, seed=1, allowed_token_ids=outside)
        assert list(Client(engine_of(trained), PROMPTS[0], params, rule=rule).open(4).token_ids) == []

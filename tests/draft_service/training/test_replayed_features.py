"""Rounds that are replayed for a report are those that a draft service with the target's features has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draft_service.drafters.making import make_drafter
from draft_service.feature_runner import make_runner
from draft_service.settings import DraftSettings
from draft_service.trained_draft import load_trained_draft
from draft_service.training.rounds import Answer, replay_rounds, write_answers
from specdec.runner.hidden_states import HiddenStates
from specdec.runner.runner import ModelRunner
from specdec.sampling.params import SamplingParams
from tests.draft_service.driving import Client, Engine
from tests.draft_service.feature_drafts import wire
from tests.draft_service.training.running import save_target, save_untrained_draft
from tests.plain_decoding import plain_text
from tests.specdec.runner.tiny_architectures import plain_states
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

PROMPTS = [[5, 6, 7], [20, 21], list(range(40, 60)), [9], [100, 3]]
NUM_TOKENS = 40
PARAMS = [SamplingParams(temperature=0.0), SamplingParams(temperature=0.5, seed=3)]
SAMPLINGS = pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = save_target(tmp_path_factory.mktemp("replayed") / "target")
    return save_untrained_draft(target, tiny_llama(), reads_states=True)


def answers(params: SamplingParams) -> list[Answer]:
    model = tiny_llama()
    hidden_states = HiddenStates(model)
    hidden_states.watch((1,))
    return write_answers(
        ModelRunner(model, TINY_VOCAB_SIZE, hidden_states),
        PROMPTS,
        params,
        max_new_tokens=NUM_TOKENS,
        max_length=200,
        device=torch.device("cpu"),
        num_sequences=3,
        feature_states=(1,),
    )


@SAMPLINGS
def test_an_answer_has_the_features_of_all_tokens_but_its_last(params: SamplingParams) -> None:
    for prompt, answer in zip(PROMPTS, answers(params), strict=True):
        text = [*prompt, *answer.token_ids]
        assert text == plain_text(tiny_llama(), prompt, params, len(prompt) + NUM_TOKENS)
        expected = plain_states(tiny_llama(), text[:-1])[:, :1]
        torch.testing.assert_close(torch.cat(answer.features).float(), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 5])
@SAMPLINGS
def test_replayed_rounds_are_those_that_are_served(draft: Path, params: SamplingParams, num_draft_tokens: int) -> None:
    # Packed weights round rows, so that the least difference between passes of other rows may become a larger one.
    loaded = load_trained_draft(str(draft), device="cpu", dtype="float32")
    engine = Engine(make_drafter(DraftSettings(drafter="model", model=str(draft), device="cpu", dtype="float32")))
    written = answers(params)
    replayed = replay_rounds(make_runner(loaded), PROMPTS, written, params, num_draft_tokens, torch.device("cpu"))
    rounds = accepted_in_all = 0
    for prompt, answer in zip(PROMPTS, written, strict=True):
        text, features = [*prompt, *answer.token_ids], torch.cat(answer.features)
        client = Client(engine, prompt, params)
        assert engine.ask(client.connection, client.open_command(0)) == []
        accepted = 0
        client.features = wire(features[: len(prompt)])
        while len(client.token_ids) + accepted + 1 < len(text):
            length = len(client.token_ids) + accepted
            proposal = list(client.commit(accepted, text[length], num_draft_tokens).token_ids)
            rounds += 1
            rest = text[length + 1 :]
            pairs = zip(proposal, rest, strict=False)
            accepted = next((place for place, (left, right) in enumerate(pairs) if left != right), len(proposal))
            accepted = min(accepted, len(rest))
            accepted_in_all += accepted
            client.features = wire(features[length : length + accepted + 1])
        client.close()
    assert (replayed.rounds, replayed.accepted) == (rounds, accepted_in_all)
    assert accepted_in_all > 0

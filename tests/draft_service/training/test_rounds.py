"""Replayed rounds against rounds that are run."""

from __future__ import annotations

import itertools

import pytest
import torch

from draft_service.training.rounds import Answer, RoundCounts, draft_matches, write_answers
from specdec.models.loading import LoadedModel
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2
from tests.tiny_models import EOS_TOKEN_ID, TINY_VOCAB_SIZE, tiny_llama, tiny_tokenizer_files

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7], [20, 21], list(range(40, 60)), [9]]
PARAMS = [
    SamplingParams(temperature=0.0, stop_token_ids=(EOS_TOKEN_ID, 4)),
    SamplingParams(temperature=0.8, seed=3, stop_token_ids=(EOS_TOKEN_ID, 4)),
]


def runner(seed: int = 0) -> ModelRunner:
    return ModelRunner(tiny_llama(seed), TINY_VOCAB_SIZE)


def choice(model: ModelRunner, text: list[int], prompt_length: int, params: SamplingParams) -> int:
    logits = model.forward([Work(SequenceCache(), text, 1)])[0][0]
    return TokenChooser(params, prompt_length, CPU).choose(logits, text)


def answers(params: SamplingParams, num_sequences: int = 3, max_length: int = 200) -> list[list[int]]:
    found = write_answers(
        runner(),
        PROMPTS,
        params,
        max_new_tokens=25,
        max_length=max_length,
        device=CPU,
        num_sequences=num_sequences,
    )
    return [answer.token_ids for answer in found]


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
def test_answers_are_what_the_target_writes_alone(params: SamplingParams) -> None:
    for prompt, answer in zip(PROMPTS, answers(params), strict=True):
        text = list(prompt)
        while len(text) < len(prompt) + 25 and (len(text) == len(prompt) or text[-1] not in params.stop_token_ids):
            text.append(choice(runner(), text, len(prompt), params))
        assert answer == text[len(prompt) :]
    assert answers(params, num_sequences=1) == answers(params, num_sequences=9)


def test_answers_end_with_the_context() -> None:
    lengths = [
        len(prompt) + len(answer) for prompt, answer in zip(PROMPTS, answers(PARAMS[0], max_length=23), strict=True)
    ]
    assert max(lengths) == 23


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 5])
@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
def test_replayed_rounds_are_those_that_are_run(params: SamplingParams, num_draft_tokens: int) -> None:
    """With a draft that is the target with a bit of noise: each round drafts on its own tokens, as a service does."""
    target, draft_model = runner(), tiny_llama()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in draft_model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    draft = ModelRunner(draft_model, TINY_VOCAB_SIZE)
    loaded = LoadedModel(draft_model, model_pb2.ModelInfo(vocab_size=TINY_VOCAB_SIZE), tiny_tokenizer_files())
    replayed = RoundCounts(num_draft_tokens)
    rounds = accepted_in_all = 0
    for prompt, answer in zip(PROMPTS, answers(params), strict=True):
        replayed.replay(draft_matches(loaded, prompt, Answer(answer), params, num_draft_tokens))
        text = [*prompt, answer[0]]
        while len(text) < len(prompt) + len(answer):
            window: list[int] = []
            for _ in range(num_draft_tokens):
                window.append(choice(draft, [*text, *window], len(prompt), params))
            rounds += 1
            for token in window:
                expected = choice(target, text, len(prompt), params)
                if token != expected or len(text) == len(prompt) + len(answer):
                    break
                text.append(token)
                accepted_in_all += 1
            if len(text) < len(prompt) + len(answer):
                text.append(choice(target, text, len(prompt), params))
    assert (replayed.rounds, replayed.accepted) == (rounds, accepted_in_all)
    assert 0 < accepted_in_all < rounds * num_draft_tokens


def test_counts_against_every_short_text() -> None:
    for length in range(1, 7):
        for matches in itertools.product([False, True], repeat=length):
            counts = RoundCounts(2)
            counts.replay([[match] for match in matches])
            # The first token is the prefill's.
            text = "".join("x" if match else "." for match in matches[1:])
            windows = []
            while text:
                taken = len(text[:2]) - len(text[:2].lstrip("x"))
                windows.append(taken)
                text = text[taken + 1 :]
            assert counts.rounds == len(windows)
            assert counts.accepted == sum(windows) == sum(counts.accepted_at)
            assert counts.accepted_at == [sum(taken >= place for taken in windows) for place in (1, 2)]
            assert counts.mean_acceptance_length == (1 + sum(windows) / len(windows) if windows else 1)


def test_each_place_of_a_window_has_its_own_match() -> None:
    counts = RoundCounts(3)
    yes, no = True, False
    # Windows: of tokens 1 to 3 (right, right, wrong), and of the last two, where the second is asked as a second.
    counts.replay([[no, no], [yes, no], [no, yes], [yes, no], [yes, no], [no, yes]])
    assert (counts.rounds, counts.drafted, counts.accepted) == (2, 5, 4)
    assert counts.accepted_at == [2, 2, 0]


def test_no_rounds_are_no_error() -> None:
    counts = RoundCounts(4)
    counts.replay([])
    assert counts.summary() == {
        "num_draft_tokens": 4,
        "rounds": 0,
        "mean_acceptance_length": 1.0,
        "acceptance_rate": 0.0,
        "accepted_at_position": [0.0] * 4,
    }

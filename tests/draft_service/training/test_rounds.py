"""Replayed rounds against rounds that are run."""

from __future__ import annotations

import pytest
import torch

from draft_service.training.rounds import Answer, RoundCounts, replay_rounds, write_answers
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.params import SamplingParams
from tests.tiny_models import EOS_TOKEN_ID, TINY_VOCAB_SIZE, tiny_llama

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
    written = [Answer(answer) for answer in answers(params)]
    replayed = replay_rounds(draft, PROMPTS, written, params, num_draft_tokens, CPU)
    rounds = accepted_in_all = drafted = 0
    for prompt, answer in zip(PROMPTS, answers(params), strict=True):
        text = [*prompt, answer[0]]
        while len(text) < len(prompt) + len(answer):
            window: list[int] = []
            for _ in range(min(num_draft_tokens, len(prompt) + len(answer) - len(text))):
                window.append(choice(draft, [*text, *window], len(prompt), params))
            rounds += 1
            drafted += len(window)
            for token in window:
                expected = choice(target, text, len(prompt), params)
                if token != expected or len(text) == len(prompt) + len(answer):
                    break
                text.append(token)
                accepted_in_all += 1
            if len(text) < len(prompt) + len(answer):
                text.append(choice(target, text, len(prompt), params))
    assert (replayed.rounds, replayed.drafted, replayed.accepted) == (rounds, drafted, accepted_in_all)
    assert sum(replayed.accepted_at) == accepted_in_all
    assert 0 < accepted_in_all < rounds * num_draft_tokens


def test_counts() -> None:
    counts = RoundCounts(3)
    for num_drafted, num_accepted in ((3, 2), (3, 0), (2, 2)):
        counts.add(num_drafted, num_accepted)
    assert (counts.rounds, counts.drafted, counts.accepted, counts.accepted_at) == (3, 8, 4, [2, 2, 0])
    assert counts.mean_acceptance_length == pytest.approx(1 + 4 / 3)
    others = RoundCounts(3)
    others.add(3, 3)
    for whole in (RoundCounts(3), others):
        before = whole.rounds
        whole.merge(counts)
        assert whole.rounds == before + 3
    assert (others.drafted, others.accepted, others.accepted_at) == (11, 7, [3, 3, 1])


def test_no_rounds_are_no_error() -> None:
    counts = replay_rounds(runner(), [[5, 6]], [Answer([7])], PARAMS[0], 4, CPU)
    assert counts.summary() == {
        "num_draft_tokens": 4,
        "rounds": 0,
        "mean_acceptance_length": 1.0,
        "acceptance_rate": 0.0,
        "accepted_at_position": [0.0] * 4,
    }
